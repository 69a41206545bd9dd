"""Everything on the NATS server: streams, buckets, requests. Only this layer imports the NATS client."""
