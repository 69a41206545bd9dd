"""Fault injection with real workers, a real server, a seeded plan of faults and a checker of the outcome."""
