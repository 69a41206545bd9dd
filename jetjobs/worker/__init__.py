"""Running jobs: pull, run, decide, settle."""
