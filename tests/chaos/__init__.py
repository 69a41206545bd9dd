"""Fault injection: real workers, a real server, a seeded plan of faults, and a checker that reads the server."""
