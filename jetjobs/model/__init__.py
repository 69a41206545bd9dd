"""What a job is: pure values and decisions. No I/O, no clock reads, nothing of NATS."""
