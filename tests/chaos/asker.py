"""Ask about jobs and change them, as callers and operators do, and record the answers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from jetjobs import JetJobs, JetJobsError, JobHandle
from jetjobs.errors import JobCancelled, JobFailed, JobNotFound, ResultExpired, ResultNotReady
from tests.chaos import clock
from tests.chaos.history import Ask, History, Sent
from tests.chaos.plan import PlannedJob

HURRIED_S = timedelta(seconds=15)
POSTPONED_S = timedelta(seconds=8)
LATER_S = 6.0
"""By how much a postponed job is later."""
NOT_FOUND, EXPIRED, FAILED, STOPPED = "not found", "expired", "failed", "cancelled"
ASKED = ("cancelled", "hurried", "postponed", "awaited")
"""The kinds of jobs that are asked about."""
_TIMEOUT = timedelta(seconds=3)
_RESULT_TIMEOUT = timedelta(seconds=12)


class Asker:
    """Asks over the producer's link, or over a direct connection, on which the faults of others show."""

    def __init__(self, app: JetJobs, operator: JetJobs, history: History) -> None:
        self._apps = (app, operator)
        self._history = history

    async def ask(self, job: PlannedJob, sent: Sent, handle: JobHandle[Any]) -> None:
        app = self._apps[job.number % 2]
        await asyncio.sleep(job.draw * 2.5)
        where = {"queue": sent.queue, "task": sent.task}
        if job.kind == "cancelled":
            await self._record("cancel", sent, app.jobs.cancel(sent.id, **where, timeout=_TIMEOUT))
        elif job.kind == "hurried":
            await self._record("run_now", sent, app.jobs.run_now(sent.id, **where))
        elif job.kind == "postponed":
            moment = sent.due_at + LATER_S
            run_at = datetime.fromtimestamp(moment, UTC)
            await self._record("reschedule", sent, app.jobs.reschedule(sent.id, run_at, **where), moment)
        else:
            await self._record("get", sent, app.jobs.get(sent.id))
            await self._record("result", sent, handle.result(_RESULT_TIMEOUT))

    async def _record(self, action: str, sent: Sent, answering: Any, moment: float = 0.0) -> None:
        entry = Ask(action, sent.id, sent.run, clock.now(), moment=moment)
        self._history.asks.append(entry)
        try:
            answer = await answering
        except JobNotFound:
            entry.answer = NOT_FOUND
        except ResultExpired:
            entry.answer = EXPIRED
        except JobFailed as error:
            entry.answer = f"{FAILED}: {error.reason}"
        except JobCancelled:
            entry.answer = STOPPED
        except ResultNotReady:
            pass
        except JetJobsError as error:
            entry.error = repr(error)
        else:
            found = {"get": "state", "result": ""}.get(action, "outcome")
            entry.answer = str(getattr(answer, found) if found else answer)
            entry.error = str(getattr(answer, "detail", ""))
        entry.answered_at = clock.now()
