"""What is in hand: whose lease must be extended, whose is lost, what runs too long, what is shown as running."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import BrokerError
from jetjobs.model.events import LeaseLostEvent, Observer
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.subjects import kv_subject
from jetjobs.worker.attempt import Attempt, Interrupt, Report

TICK_S = 0.25
LAG_WINDOW_S = 10.0
SHOWN_AFTER_S = 0.25
EARLY_BEAT_S = 0.5
BLOCKED_AFTER_S = 1.5 * TICK_S
"""A loop that has not turned for this long is late to show what runs; the keeper does it."""
_GONE = {h.KV_OPERATION: "DEL", h.TTL: "1s"}
STANDSTILL_S = 1.0
"""A loop that has not turned for this long was blocked, or the process frozen."""


class Leases:
    """All attempts in hand. Deliveries waiting for a slot are held too: their lease runs as well."""

    def __init__(self, jetstream: JetStreamClient, worker: str, lease_s: float, observe: Observer) -> None:
        self.lease_s = lease_s
        self._connection = jetstream.connection
        self._names = jetstream.names
        self._bucket = jetstream.names.running_bucket
        self._kept = {h.TTL: f"{max(1, round(2 * lease_s))}s"}
        self._worker = worker
        self._observe = observe
        self._held: dict[tuple[str, int], Attempt] = {}
        self._beating: set[asyncio.Task[None]] = set()
        self.turned_at = time.monotonic()
        """When the loop last came by; it does so every TICK_S unless it is blocked, or the process frozen."""
        self._tending = False
        self._lags: deque[float] = deque(maxlen=round(LAG_WINDOW_S / TICK_S))
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = float("inf")

    def hold(self, attempt: Attempt) -> None:
        self._held[attempt.place] = attempt

    def let_go(self, attempt: Attempt) -> None:
        if self._held.get(attempt.place) is attempt:
            del self._held[attempt.place]

    def renew(self, queue: str, delivery: Delivery, since: float) -> bool:
        """Whether this very message is in hand: then the server gave it to us once more, and it is ours anew."""
        there = self._held.get((queue, delivery.sequence))
        # Sequences begin anew in a stream that was made again, so the subject must be the same too.
        if there is None or there.delivery.subject != delivery.subject:
            return False
        there.leased_until = max(there.leased_until, since + self.lease_s)
        return True

    @property
    def held(self) -> list[Attempt]:
        return list(self._held.values())

    # Time limits: one timer for all jobs, armed for the first to expire.

    def limit(self, attempt: Attempt, expires_at: float) -> None:
        attempt.expires_at = expires_at
        if expires_at < self._armed_for:
            self._arm(expires_at)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = when
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, when - time.monotonic()), self._expire)

    def _expire(self) -> None:
        now = time.monotonic()
        self._timer, self._armed_for = None, float("inf")
        following = float("inf")
        for attempt in self.held:
            if not attempt.running:
                continue
            if attempt.expires_at <= now:
                attempt.stop_running(Interrupt.TIMEOUT)
            else:
                following = min(following, attempt.expires_at)
        if following < float("inf"):
            self._arm(following)

    # Leases

    def beat(self, now: float, through: Connection, share: float) -> None:
        """Extend every lease of which more than `share` has passed. Also called from the keeper's thread."""
        for attempt in self.held:
            due = now - attempt.beat_at >= self.lease_s * share or self._early_beat_due(attempt, now)
            # A job past its time limit gets no more beats: whatever still runs must not keep it for ever.
            over = attempt.running and now > attempt.expires_at + self.lease_s
            if due and not over and now < attempt.leased_until:
                task = asyncio.get_running_loop().create_task(self._extend(attempt, now, through))
                self._beating.add(task)
                task.add_done_callback(self._beating.discard)

    async def _extend(self, attempt: Attempt, now: float, through: Connection) -> None:
        """One heartbeat. It counts from when it was sent, and only if the server has answered: what is written to
        a connection that nobody reads any more extends nothing."""
        before, attempt.beat_at = attempt.beat_at, now
        try:
            await attempt.delivery.extend(through, min(2.0, self.lease_s / 3))
        except BrokerError:
            attempt.beat_at = before  # due again at once
        else:
            attempt.leased_until = max(attempt.leased_until, now + self.lease_s)

    def _early_beat_due(self, attempt: Attempt, now: float) -> bool:
        """The server counts a lease from the time the job was stored until the first beat: after a broker
        restart, a job that had queued for long would be redelivered at once."""
        age = now - attempt.received_at
        if attempt.beat_at != attempt.received_at or age < min(EARLY_BEAT_S, self.lease_s / 6):
            return False
        return time.time() - age - attempt.delivery.stored_at > self.lease_s / 2

    async def tend(self, each_tick: Callable[[], None], stood_still: Callable[[float], None]) -> None:
        """What the loop itself does for leases, until cancelled: notice lost ones, show what runs.

        It beats only for leases that the keeper has left alone for half their time. `stood_still` is told when the
        loop has not turned for long: since when.
        """
        self.turned_at = time.monotonic()  # however long the start took, nothing was asked for before
        self._tending = True
        try:
            while True:
                pause = min(TICK_S, self.lease_s / 6)
                await asyncio.sleep(pause)
                now = time.monotonic()
                since, self.turned_at = self.turned_at, now
                self._lags.append(max(0.0, now - since - pause))
                if now - since > STANDSTILL_S:
                    stood_still(since)
                for attempt in self.held:
                    if now >= attempt.leased_until:
                        self.lose(attempt)
                if self._connection.connected:
                    self.beat(now, self._connection, 1 / 2)
                    self._show_running(now)
                each_tick()
        finally:
            self._tending = False
            if self._timer is not None:
                self._timer.cancel()

    @property
    def silent_s(self) -> float:
        """How long the loop has not turned; 0 while `tend` does not run. For any thread."""
        return time.monotonic() - self.turned_at if self._tending else 0.0

    @property
    def lag_s(self) -> float:
        """The longest time in the last ten seconds that the loop was late, the present one included. For any
        thread: a blocked loop cannot hide it."""
        return max(self.silent_s - TICK_S, 0.0, *tuple(self._lags))

    def lose(self, attempt: Attempt) -> None:
        """Nothing of it is ours any more: stop it, and settle nothing."""
        self.let_go(attempt)
        attempt.stop_running(Interrupt.LEASE_LOST)
        attempt.interrupt = Interrupt.LEASE_LOST
        job = attempt.job
        self._observe(LeaseLostEvent(attempt.queue, job.task if job else "", job.id if job else ""))

    # The `running` record: only of jobs that last, and gone by itself when the worker is.

    def _show_running(self, now: float) -> None:
        for attempt in self.held:
            lasts = attempt.running and now - attempt.started_at >= SHOWN_AFTER_S
            if not lasts:
                continue
            told = attempt.report is not None and not attempt.report.sent
            if told or now - attempt.shown_at >= self.lease_s / 3:
                self._show(attempt, now)

    def _show(self, attempt: Attempt, now: float) -> None:
        job, report = attempt.job, attempt.report
        if job is None:
            return
        attempt.shown_at = now
        record = self._record(attempt, job, report)
        self._connection.post(kv_subject(self._bucket, job.id), record, headers=self._kept)
        if report is not None and not report.sent:
            self._tell(job, report, record, self._connection)

    def show_late(self, now: float, through: Connection) -> None:
        """Called from the keeper's thread: show what runs and what it tells while the loop is blocked."""
        if now - self.turned_at < BLOCKED_AFTER_S:
            return
        for attempt in self.held:
            job, report = attempt.job, attempt.report
            if job is None or not attempt.running or now - attempt.started_at < SHOWN_AFTER_S:
                continue
            told = report is not None and not report.sent
            if told or now - attempt.shown_at >= self.lease_s / 3:
                task = asyncio.get_running_loop().create_task(self._show_through(attempt, job, now, through))
                self._beating.add(task)
                task.add_done_callback(self._beating.discard)

    async def _show_through(self, attempt: Attempt, job: Job, now: float, through: Connection) -> None:
        before, attempt.shown_at = attempt.shown_at, now
        report, subject = attempt.report, kv_subject(self._bucket, job.id)
        record = self._record(attempt, job, report)
        if report is not None and not report.sent:
            self._tell(job, report, record, through)
        try:
            await through.ask(subject, record, self._kept, 2.0)
        except BrokerError:
            attempt.shown_at = before
        if not attempt.running:
            # Ended meanwhile. The loop's word of that went another way, and may have been there before ours.
            through.post(subject, b"", headers=_GONE)

    def tell_last(self, attempt: Attempt) -> None:
        """At the end of an attempt: what no tick has told of its progress. The last is never lost."""
        job, report = attempt.job, attempt.report
        if report is not None and not report.sent and job is not None and attempt.owned():
            self._tell(job, report, self._record(attempt, job, report), self._connection)

    def _tell(self, job: Job, report: Report, record: bytes, through: Connection) -> None:
        report.sent = through.post(self._names.job_event(n.PROGRESS, job.queue, job.task, job.id), record)

    def _record(self, attempt: Attempt, job: Job, report: Report | None) -> bytes:
        record: dict[str, object] = {
            "id": job.id,
            "run": job.run,
            "task": job.task,
            "queue": job.queue,
            "attempt": job.attempt,
            "worker": self._worker,
            "started_at": round(time.time() - (time.monotonic() - attempt.started_at), 6),
        }
        if report is not None:
            record["progress"], record["message"] = report.fraction, report.message
        return json.dumps(record).encode()

    def hide(self, attempt: Attempt) -> None:
        """Take the record away, a second later: readers in between see that the job is ending."""
        if attempt.shown_at and attempt.job is not None:
            subject = kv_subject(self._bucket, attempt.job.id)
            self._connection.post(subject, b"", headers=_GONE)
