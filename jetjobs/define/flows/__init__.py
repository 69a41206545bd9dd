"""Flows as users declare them, and the handle of a stored flow."""
