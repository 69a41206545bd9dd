"""Child processes that run tasks with isolation="process"."""
