"""Hypothesis for this folder: no time limit on one example, and no files left behind."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("jetjobs", deadline=None, database=None, print_blob=True)
settings.load_profile("jetjobs")
