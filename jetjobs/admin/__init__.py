"""Operations on jobs, queues, dead letters and schedules, shared by the app and the command line."""
