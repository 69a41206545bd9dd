"""Shared test helpers: real servers, a proxy, processes, and ways to wait for a condition."""
