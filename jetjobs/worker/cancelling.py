"""What a worker does when it is asked to cancel a job: stop it if it runs here and can be stopped, and say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetjobs.define.registry import Router
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.leases import Leases


def cancel_here(leases: Leases, registry: Router, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request: `holds` says whether the job is in hand, `runs` whether its task has begun, `stops`
    whether that was interrupted. The mark is written before anybody is asked: what has not begun will not.
    """
    attempt = _find(leases, str(request.get("id", "")), str(request.get("run", "")))
    if attempt is None or attempt.job is None:
        return {"holds": False}
    if not attempt.running:
        return {"holds": True, "runs": False}
    task = registry.tasks.get(attempt.job.task)
    # A thread cannot be stopped: to cancel the attempt would only hide that its code runs on.
    stops = task is not None and (task.is_async or task.isolated)
    if stops:
        attempt.cancel_running()
    return {"holds": True, "runs": True, "stops": stops}


def holds_here(leases: Leases, request: Mapping[str, Any]) -> dict[str, Any]:
    """Whether that very message of a job is in hand."""
    attempt = _find(leases, str(request.get("id", "")), str(request.get("run", "")))
    return {"holds": attempt is not None and attempt.job is not None and attempt.job.hop == request.get("hop")}


def _find(leases: Leases, job_id: str, run: str) -> Attempt | None:
    for attempt in leases.held:
        if attempt.job is not None and attempt.job.id == job_id and attempt.job.run == run:
            return attempt
    return None
