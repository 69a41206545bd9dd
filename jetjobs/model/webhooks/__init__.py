"""Webhooks without I/O: endpoints, messages and signatures."""
