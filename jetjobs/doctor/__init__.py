"""`jetjobs doctor`: read-only checks that report problems and say how to fix them."""
