"""Work that only the leader does: maintenance sweeps and stranded jobs."""
