"""Observability: log lines and metrics of events, and the HTTP port for metrics and health checks."""
