"""Planning of schedules by the leader: store what the code declares, apply edits, place jobs ahead of time."""
