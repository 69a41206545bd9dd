"""The worker among other workers: its record, control requests and live events."""
