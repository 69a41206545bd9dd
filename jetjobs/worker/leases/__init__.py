"""Leases of held attempts: heartbeats, time limits and running records."""
