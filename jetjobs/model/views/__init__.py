"""What operators see: dead letters, job queries, queues, workers and live events. No I/O."""
