"""Changes to jobs: cancel them, move them, replay dead ones, one or many at a time."""
