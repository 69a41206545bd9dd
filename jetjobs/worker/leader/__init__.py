"""Work that only the leader does: repairing overdue and stranded jobs, removing orphans, counting queues."""
