"""The run of one job: admit, execute, decide, settle, observe."""
