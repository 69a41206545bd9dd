"""Processes that commands start and supervise."""
