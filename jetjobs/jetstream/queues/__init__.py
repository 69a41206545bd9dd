"""Queues on the server: counts, pause, purge and inspection."""
