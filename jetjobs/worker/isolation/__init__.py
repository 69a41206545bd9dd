"""Child processes for tasks with isolation="process"."""
