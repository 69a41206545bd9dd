"""Where jobs are found and what is stored about them: status, results, checkpoints, dead letters."""
