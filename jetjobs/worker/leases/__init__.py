"""Leases of held jobs: heartbeats, time limits and running records."""
