"""Why a job has not ended, as a sentence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs import JobState, JobStatus
from jetjobs.jetstream.messages.codec import max_attempts_in
from jetjobs.model.views.queue_info import Pause
from jetjobs.model.views.waiting_reason import Surroundings, waiting_reason
from jetjobs.model.views.worker_info import QueueSlots, WorkerRecord

NOW = datetime(2027, 1, 31, 9, 0, tzinfo=UTC).timestamp()
LATER = datetime(2027, 1, 31, 9, 0, 40, tzinfo=UTC)
FAILED: dict[str, Any] = {"attempt": 1, "type": "ValueError", "text": "bad\n\taddress"}
AROUND = Surroundings(NOW)
START = "start one with `jetjobs worker --queue mail`"
RUN_NOW = "run it now with `jetjobs jobs reschedule a1 --now`"


def job(state: JobState | None, **fields: Any) -> JobStatus:
    return JobStatus("a1", state, "mail", "send", **{"attempt": 1, **fields})


def worker(phase: str = "ready", tasks: tuple[str, ...] = ("send",), queue: str = "mail") -> WorkerRecord:
    slots, known = {queue: QueueSlots(1, 1)}, dict.fromkeys(tasks, "")
    return WorkerRecord(
        "w-1",
        "w",
        "host",
        1,
        "0",
        "3",
        phase,
        slots,
        known,
        1,
        1,
        (),
        timedelta(0),
        0,
        datetime.fromtimestamp(NOW, UTC),
    )


QUEUED = job(JobState.QUEUED)
RETRYING = job(JobState.RETRYING, attempt=2, due_at=LATER, history=(FAILED,))


@pytest.mark.parametrize(
    ("status", "around", "text", "hint"),
    [
        (QUEUED, AROUND._replace(workers=[]), "no running worker takes queue 'mail'", START),
        (
            QUEUED,
            AROUND._replace(workers=[worker(queue="other")]),
            "no running worker takes queue 'mail'",
            START,
        ),
        (
            QUEUED,
            AROUND._replace(workers=[worker("quiet")]),
            "all workers of queue 'mail' are quiet and take no new jobs",
            START,
        ),
        (
            QUEUED,
            AROUND._replace(workers=[worker(tasks=("other",)), worker("quiet")]),
            "no running worker of queue 'mail' has task 'send'",
            "start a worker with the app that declares it",
        ),
        (
            QUEUED,
            AROUND._replace(workers=[worker(), worker("quiet")], queued=1200),
            "it waits for a free slot in the running worker of queue 'mail' (1,200 queued)",
            "start another worker with `jetjobs worker --queue mail`",
        ),
        (
            QUEUED,
            AROUND._replace(workers=[worker(), worker(tasks=())]),
            "it waits for a free slot in one of the 2 running workers of queue 'mail' (0 queued)",
            "start another worker with `jetjobs worker --queue mail`",
        ),
        (QUEUED, AROUND, "it is queued on 'mail'", None),
        (
            QUEUED,
            AROUND._replace(pause=Pause(LATER + timedelta(seconds=1160), "deploy", "ada@host"), workers=[]),
            "queue 'mail' is paused until 2027-01-31 09:20:00 UTC by ada@host: deploy",
            "resume it with `jetjobs queues resume mail`",
        ),
        (
            QUEUED,
            AROUND._replace(pause=Pause(None)),
            "queue 'mail' is paused: no reason given",
            "resume it with `jetjobs queues resume mail`",
        ),
        (
            job(JobState.SCHEDULED, due_at=LATER),
            AROUND,
            "it is due at 2027-01-31 09:00:40 UTC, in 40.0 s",
            RUN_NOW,
        ),
        (
            RETRYING,
            AROUND._replace(max_attempts=5),
            "it is retried in 40.0 s (attempt 2 of 5); attempt 1 failed: ValueError: bad address",
            RUN_NOW,
        ),
        (
            RETRYING,
            AROUND._replace(now=NOW + 60),
            "it is retried in a moment (attempt 2); attempt 1 failed: ValueError: bad address",
            RUN_NOW,
        ),
        (
            job(JobState.RETRYING, due_at=LATER),
            AROUND,
            "it was snoozed and runs again in 40.0 s",
            RUN_NOW,
        ),
        (
            job(JobState.RETRYING, due_at=LATER, reason="no worker knows task 'send'"),
            AROUND,
            "no worker knows task 'send'; it is tried again in 40.0 s",
            RUN_NOW,
        ),
        (
            job(JobState.RUNNING, worker="w", started_at=datetime.fromtimestamp(NOW - 90, UTC)),
            AROUND,
            "it has been running for 1m30s on worker w",
            None,
        ),
    ],
)
def test_the_reason_says_what_the_job_waits_for_and_what_to_do(
    status: JobStatus, around: Surroundings, text: str, hint: str | None
) -> None:
    reason = waiting_reason(status, around)
    assert reason is not None
    assert (reason.text, reason.hint) == (text, hint)


@pytest.mark.parametrize("state", [None, JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED])
def test_a_job_that_has_ended_or_is_gone_waits_for_nothing(state: JobState | None) -> None:
    assert waiting_reason(job(state), AROUND) is None


@given(st.floats(-1e6, 1e6), st.sampled_from([QUEUED, RETRYING, job(JobState.SCHEDULED, due_at=LATER)]))
def test_time_that_passes_is_not_another_reason(later: float, status: JobStatus) -> None:
    before, after = waiting_reason(status, AROUND), waiting_reason(status, AROUND._replace(now=NOW + later))
    assert before is not None
    assert after is not None
    assert before.key == after.key


@pytest.mark.parametrize(
    ("headers", "most"),
    [
        ({}, 0),
        ({"Jetjobs-Max-Attempts": "3"}, 3),
        ({"Jetjobs-Retry": '{"max_attempts":4}'}, 4),
        ({"Jetjobs-Max-Attempts": "3", "Jetjobs-Retry": '{"max_attempts":4}'}, 3),
        ({"Jetjobs-Max-Attempts": "x", "Jetjobs-Retry": "nonsense"}, 0),
    ],
)
def test_attempts_that_a_job_carries_itself(headers: dict[str, str], most: int) -> None:
    assert max_attempts_in(headers) == most
