"""Values and decisions about jobs. No I/O, no clock, no NATS."""
