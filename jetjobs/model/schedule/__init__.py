"""Schedules as values: definition, calendar and plan. No I/O."""
