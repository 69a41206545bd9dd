"""Planning schedules: definitions are compared with marks, and ticks are placed."""
