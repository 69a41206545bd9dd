"""Benchmarks: jetjobs beside plain nats-py, on the same work, the same server and in the same minute."""
