"""Listens to events: logs, metrics, health. Only the app wires it in."""
