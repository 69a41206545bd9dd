"""The error tree. Imports nothing, so that every layer may raise from it.

JetJobsError
  ConfigError             bad settings, found when they are built
  DefinitionError         bad task, name, signature or dependency, found at declaration
  BrokerError             the server refused or is gone; `__cause__` is the nats error
    BrokerUnavailable       no server, or it went away
    AccessDenied            wrong credentials, or no permission on a subject
    UnsupportedServer       too old, or JetStream is off
    TopologyMissing         a stream, lane or bucket that must be there is not
    TopologyConflict        a stream, lane or bucket is not as wanted and cannot be made so
    StorageFull             JetStream has no room left
  EnqueueError            the job is not stored (except EnqueueUnconfirmed: not known)
    EnqueueUnconfirmed      no confirmation came; the job may or may not be stored
    QueueNotFound           there is no such queue or lane
    JobTooLarge             arguments over 64 MiB, or headers over their limit
    InvalidArguments        also a DeliveryError
  DeliveryError           what arrived cannot run; always ends as a dead letter
    MalformedJob            the body, a header or the subject cannot be read
    UnknownTask             no task of that name in this app
    InvalidArguments        the arguments do not fit the task's signature
  AttemptError            how a run broke
    JobTimeout              the task ran longer than its timeout
    LeaseLost               the lease ran out under the running task
    ChildDied               the child process that ran the task is gone, or would not start
    UnstorableValue         a result or checkpoint that JSON cannot hold, or that is over its limit
  ResultError             the result cannot be had
    ResultNotReady          the job has not ended within the time given
    ResultExpired           the job has ended and its record is gone, or was never kept
    JobFailed               the job is dead; remote type, text and traceback as strings
    JobCancelled            somebody has cancelled the job
  JobNotFound             no job or dead letter is found by that id, or its record has expired
  JobAmbiguous            several have that id, in different queues or tasks
  CheckpointError         a checkpoint that does not fit the type it is asked for
  ScheduleNotFound        there is no schedule of that name
  ScheduleConflict        somebody else has changed the schedule meanwhile
  WorkerNotFound          there is no live worker of that name
  WorkerSilent            it is registered, and did not answer

Signal                    no error: raised by a task to say what is to follow
  Retry                     this attempt failed; the next one after the time given
  Snooze                    not now; spends no attempt
  Reject                    never; the job is dead
"""

from __future__ import annotations

from datetime import datetime, timedelta

from jetjobs.model.public import public


class JetJobsError(Exception):
    """Base of every error jetjobs raises. `hint` says what to do about it, where that is known."""

    hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class ConfigError(JetJobsError):
    """Settings that cannot be used."""


class DefinitionError(JetJobsError):
    """A declaration that cannot work: found when the module is imported, not when a job runs."""


class BrokerError(JetJobsError):
    """The server refused, or is gone."""

    def __init__(self, message: str, *, hint: str | None = None, code: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        """The server's `err_code`, or 0."""


class BrokerUnavailable(BrokerError):
    """No server answers."""


class AccessDenied(BrokerError):
    """The server knows us and says no."""


class UnsupportedServer(BrokerError):
    """The server is too old, or has JetStream off."""


class TopologyMissing(BrokerError):
    """A stream, lane or bucket that must be there is not."""


class TopologyConflict(BrokerError):
    """A stream, lane or bucket is not as wanted and cannot be made so."""


class StorageFull(BrokerError):
    """JetStream has no room left; nothing was stored."""


class EnqueueError(JetJobsError):
    """The job is not stored."""


class EnqueueUnconfirmed(EnqueueError):
    """No confirmation came in time: the job may or may not be stored."""

    def __init__(self, message: str, *, job_id: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job_id = job_id


class QueueNotFound(EnqueueError):
    """There is no such queue, or it has no such lane."""


class JobTooLarge(EnqueueError):
    """The arguments are over 64 MiB, or the headers over their limit."""

    def __init__(self, message: str, *, size: int, limit: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.size = size
        self.limit = limit


class DeliveryError(JetJobsError):
    """What arrived cannot run. Ends as a dead letter, never in silence."""


class MalformedJob(DeliveryError):
    """The body, a header or the subject cannot be read."""


class UnknownTask(DeliveryError):
    """No task of that name in this app."""


class InvalidArguments(EnqueueError, DeliveryError):
    """Arguments that do not fit the task's signature. `problems` pairs each argument with what is wrong."""

    def __init__(self, message: str, *, task: str, problems: list[tuple[str, str]]) -> None:
        super().__init__(message)
        self.task = task
        self.problems = problems


class AttemptError(JetJobsError):
    """How a run broke, when the task itself did not raise."""

    child_error: object = None
    """What a child process said of the error, where it was raised there."""


class JobTimeout(AttemptError):
    """The task ran longer than its timeout."""


class LeaseLost(AttemptError):
    """The lease ran out under the running task: somebody else may be running the job now."""


class ChildDied(AttemptError):
    """The child process that ran the task is gone: a segfault, `os._exit`, want of memory. Or it did not start."""


class ChildRaised(AttemptError):
    """Internal: the task raised in its child process, where its class is known and it was judged."""

    def __init__(self, message: str, *, child_error: object, transient: bool, after_s: float | None) -> None:
        super().__init__(message)
        self.child_error = child_error
        self.transient = transient
        self.after_s = after_s


class UnstorableValue(AttemptError):
    """A result or a checkpoint that JSON cannot hold, or that is over its limit. Not worth another attempt."""


class ResultError(JetJobsError):
    """The result of a job cannot be had."""


class ResultNotReady(ResultError):
    """The job has not ended within the time given."""


class ResultExpired(ResultError):
    """The job has ended and its record is gone, or was never kept."""


class JobFailed(ResultError):
    """The job is dead. The remote error comes as text: exceptions never cross processes as objects."""

    def __init__(self, message: str, *, reason: str, error_type: str, text: str, traceback: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.error_type = error_type
        self.text = text
        self.traceback = traceback


class JobCancelled(ResultError):
    """The job was cancelled and has no result."""


class JobNotFound(JetJobsError):
    """No job of that id is anywhere, or no dead letter where one is asked for."""


class JobAmbiguous(JetJobsError):
    """Callers chose the same id in different queues or tasks. `places` names them."""

    def __init__(self, message: str, *, places: list[tuple[str, str]], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.places = places


class CheckpointError(JetJobsError):
    """A checkpoint that does not fit the type it is asked for."""


class ScheduleNotFound(JetJobsError):
    """There is no schedule of that name."""


class ScheduleConflict(JetJobsError):
    """The schedule is not as the caller knew it: somebody else has changed it meanwhile."""


class WorkerNotFound(JetJobsError):
    """There is no live worker of that name."""


class WorkerSilent(JetJobsError):
    """The worker is registered and has not answered in time: its event loop is blocked, or it has just died."""


class Signal(Exception):
    """Raised by a task to say what is to follow. Not an error: it is not caught by `except JetJobsError`."""

    child_error: object = None
    """What a child process said of the signal, where it was raised there."""


class Retry(Signal):
    """This attempt failed; make the next one `after` so long. Without a time, the task's policy decides."""

    def __init__(self, after: timedelta | None = None, reason: str = "retry asked for") -> None:
        super().__init__(reason)
        if after is not None and after < timedelta(0):
            raise DefinitionError("Retry(after) must not be negative")
        self.after = after


class Snooze(Signal):
    """Not now: call again `after` so long, or at `until`. Spends no attempt, however often."""

    def __init__(
        self, after: timedelta | None = None, *, until: datetime | None = None, reason: str = "snoozed"
    ) -> None:
        super().__init__(reason)
        if (after is None) == (until is None):
            raise DefinitionError("Snooze takes `after` or `until`")
        if after is not None and after < timedelta(0):
            raise DefinitionError("Snooze(after) must not be negative")
        if until is not None and until.tzinfo is None:
            raise DefinitionError("Snooze(until) has no time zone")
        self.after = after
        self.until = until


class Reject(Signal):
    """Never: the job is dead with reason `permanent`, and this text as its cause."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


for _kind in tuple(globals().values()):
    if isinstance(_kind, type) and issubclass(_kind, JetJobsError | Signal):
        public("jetjobs.errors")(_kind)
