"""Terminal input and output shared by commands."""
