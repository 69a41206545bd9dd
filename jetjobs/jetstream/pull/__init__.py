"""Pull consumers: keep pull requests open and turn messages into deliveries."""
