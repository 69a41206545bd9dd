"""Values for operators: dead letters, job queries, queues, workers, live events and errors. No I/O."""
