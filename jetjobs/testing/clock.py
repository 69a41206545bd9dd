"""Let time pass for jobs that wait, without waiting."""

from __future__ import annotations

from datetime import timedelta

from jetjobs.app import JetJobs
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.topology import queues_on
from jetjobs.model.durations import parse_duration
from jetjobs.testing.aside import ask
from jetjobs.testing.later import bring_forward


class Clock:
    """The time of the jobs that wait on an app's server: delayed, retrying or snoozed, in all queues."""

    def __init__(self, app: JetJobs) -> None:
        self._app = app

    def advance(self, by: timedelta | str) -> int:
        """As if `by` had passed for them: what is due by then is queued when this returns, and how many those are.

        Everything else waits for so much less. Their deadline and age move along. Nothing else does: not the clock
        of this process, not the deadline of a queued job, not the time that a result is kept.
        """
        if not isinstance(by, str | timedelta):
            raise TypeError(f"advance takes a timedelta or text such as '90m', not {by!r}")
        by_s = (parse_duration(by) if isinstance(by, str) else by).total_seconds()
        if by_s < 0:
            raise ValueError("time does not go back")

        async def everywhere(client: JetStreamClient) -> int:
            queues = await queues_on(client.connection, client.names)
            return sum([await bring_forward(client, queue, by_s) for queue in queues])

        return ask(self._app, everywhere)
