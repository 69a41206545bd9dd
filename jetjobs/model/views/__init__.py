"""Values for operators: dead letters, job queries, queues, workers and live events. No I/O."""
