"""Pull consumers: keep requests open, and turn messages into deliveries."""
