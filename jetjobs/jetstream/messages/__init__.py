"""Messages in streams: encode, publish, get, scan, and payloads too large for one."""
