"""Runnable examples, used by the demo, the tests and docker-compose."""
