"""Find jobs on the server, and what is stored about them: status, results, checkpoints, dead letters."""
