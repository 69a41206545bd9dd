"""Schedules: definition, cron expressions and planning. No I/O."""
