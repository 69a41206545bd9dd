"""Hypothesis for this folder: no limit on time, since the machine may be busy, and no files left behind."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "jetjobs", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None, print_blob=True
)
settings.load_profile("jetjobs")
