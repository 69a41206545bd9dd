"""What users declare: tasks, dependencies, middleware. No I/O."""
