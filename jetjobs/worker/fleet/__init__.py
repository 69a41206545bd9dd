"""This worker as one of many: its record in the registry, control requests and live events."""
