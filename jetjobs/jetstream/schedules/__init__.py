"""Schedules on the server: their definitions and the ticks placed for them."""
