"""The gauge of schedules, from what the leader's planner knows."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from prometheus_client.core import GaugeMetricFamily

MOST = 1000
"""Series at the most: there may be ten thousand schedules, and it is the late ones that matter."""


def schedule_family(lateness: Mapping[str, float]) -> GaugeMetricFamily:
    """How late each schedule is, in seconds; of more than MOST the latest."""
    family = GaugeMetricFamily(
        "jetjobs_schedule_lateness_seconds", "How long a slot is due that is not placed", labels=("schedule",)
    )
    shown = lateness.items()
    if len(lateness) > MOST:
        # By name among equals, so that not others are shown at each scrape.
        shown = dict(heapq.nsmallest(MOST, shown, key=lambda one: (-one[1], one[0]))).items()
    for name, late_s in shown:
        family.add_metric((name,), late_s)
    return family
