"""Jobs over HTTP: an API for services without NATS credentials."""
