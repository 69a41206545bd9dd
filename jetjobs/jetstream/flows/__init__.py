"""Flows on the server: the ledger of ended steps, gates that wait for them, and the placing of steps."""
