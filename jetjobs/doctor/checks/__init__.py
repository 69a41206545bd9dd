"""The checks that the doctor runs, one module per area."""
