"""Checked by mypy, never run: what the types promise, and what they refuse."""
