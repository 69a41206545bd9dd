"""Messages in streams: encode, publish, get, scan, and payloads that are too large for one message."""
