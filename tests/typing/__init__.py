"""Checked by mypy and pyright, never run: what the types promise, and what they refuse."""
