"""Benchmarks: jetjobs compared with plain nats-py, on the same work and server and in the same run."""
