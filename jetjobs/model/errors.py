"""Every error that jetjobs raises. The signals, with which a task controls what follows, are in `outcome`.

JetJobsError
  ConfigError             invalid settings, found when they are built
  DefinitionError         invalid task, name, signature or dependency, found at declaration
    NotYetKnown             the result of a step was used while the flow is declared
  LifespanFailed          a lifespan raised; `__cause__` is its exception
  BrokerError             the server refused or is unreachable; `__cause__` is the nats error
    BrokerUnavailable       no server answers
    AccessDenied            wrong credentials, or no permission for a subject
    UnsupportedServer       the server is too old, or JetStream is off
    TopologyMissing         a required stream, lane or bucket does not exist
    TopologyConflict        a stream, lane or bucket differs and cannot be changed
    StorageFull             JetStream has no space left
  EnqueueError            the job is not stored (EnqueueUnconfirmed: unknown)
    EnqueueUnconfirmed      no confirmation came; the job may or may not be stored
    QueueNotFound           the queue or lane does not exist
    JobTooLarge             arguments over 64 MiB, or headers over their limit
    FlowConflict            another flow has that id
    InvalidArguments        also a DeliveryError
  DeliveryError           a delivered job cannot run; it becomes a dead letter
    MalformedJob            the body, a header or the subject cannot be read
    UnknownTask             the app has no task of that name
    InvalidArguments        the arguments do not fit the signature of the task
  AttemptError            an attempt failed for another reason than an exception of the task
    JobTimeout              the task ran longer than its timeout
    LeaseLost               the lease expired while the task was running
    ChildDied               the child process of the task died or did not start
    UnstorableValue         a result or checkpoint has no JSON form or exceeds its limit
  ResultError             the result is not available
    ResultNotReady          the job has not ended within the timeout; also a TimeoutError
    ResultExpired           the job has ended, and its record has expired or was never stored
    JobFailed               the job is dead; type, text and traceback of the error as strings
    JobCancelled            the job was cancelled
    FlowFailed              a step of the flow is dead, or the flow has not ended by its deadline
    FlowCancelled           the flow was cancelled
  FlowNotFound            no flow has that id, or its record has expired
  JobNotFound             no job or dead letter has that id, or its record has expired
  JobAmbiguous            several jobs have that id, in different queues or tasks
  QueueInUse              the queue holds jobs, or workers or schedules use it
  CheckpointError         a checkpoint does not fit the requested type
  ScheduleNotFound        no schedule has that name
  ScheduleConflict        another process has changed the schedule
  WorkerNotFound          no running worker has that name
  WorkerSilent            the worker is registered, but did not answer
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jetjobs.model.flow.failed import Failed
from jetjobs.model.public import public


class JetJobsError(Exception):
    """Base of all errors of jetjobs. `hint` says what to do about it, if that is known; tracebacks show it."""

    _hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint

    @property
    def hint(self) -> str | None:
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        notes: list[str] = getattr(self, "__notes__", [])
        if self._hint is not None and (shown := _hint_note(self._hint)) in notes:
            notes.remove(shown)
        self._hint = hint
        if hint is not None:
            self.add_note(_hint_note(hint))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles keep the message, the hint and all fields, also of errors that take more than a message."""
        return _unpickled, (type(self), self.args, vars(self))


def _hint_note(hint: str) -> str:
    return f"hint: {hint}"


def _unpickled(kind: type[JetJobsError], args: tuple[Any, ...], fields: dict[str, Any]) -> JetJobsError:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(fields)
    return error


class ConfigError(JetJobsError):
    """Invalid settings."""


class DefinitionError(JetJobsError):
    """An invalid declaration, found when the module is imported, not when a job runs."""


class NotYetKnown(DefinitionError):
    """The result of a step was used while the flow is declared. It can only be passed to other steps."""


class LifespanFailed(JetJobsError):
    """A lifespan raised while the worker was starting or stopping. `__cause__` is what it raised."""


class BrokerError(JetJobsError):
    """The server refused a request or is unreachable."""

    def __init__(self, message: str, *, hint: str | None = None, code: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        """The server's `err_code`, or 0."""


class BrokerUnavailable(BrokerError):
    """No server answers."""


class AccessDenied(BrokerError):
    """The server rejected the credentials, or denied access to a subject."""


class UnsupportedServer(BrokerError):
    """The server is too old, or JetStream is off."""


class TopologyMissing(BrokerError):
    """A required stream, lane or bucket does not exist."""


class TopologyConflict(BrokerError):
    """A stream, lane or bucket differs from the required configuration and cannot be changed."""


class StorageFull(BrokerError):
    """JetStream has no space left; nothing was stored."""


class EnqueueError(JetJobsError):
    """The job is not stored."""


class EnqueueUnconfirmed(EnqueueError):
    """The server did not confirm in time: the job may or may not be stored."""

    def __init__(self, message: str, *, job_id: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job_id = job_id


class JobConflict(EnqueueError):
    """Another job has the id."""

    def __init__(self, message: str, *, job_id: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job_id = job_id


class FlowConflict(EnqueueError):
    """Another flow, with other steps or arguments, has the id."""

    def __init__(self, message: str, *, flow_id: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.flow_id = flow_id


class QueueNotFound(EnqueueError):
    """The queue does not exist, or does not have the lane."""


class JobTooLarge(EnqueueError):
    """The arguments exceed 64 MiB, or the headers exceed their limit."""

    def __init__(self, message: str, *, size: int, limit: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.size = size
        self.limit = limit


class DeliveryError(JetJobsError):
    """A delivered job cannot run. It becomes a dead letter."""


class MalformedJob(DeliveryError):
    """The body, a header or the subject cannot be read."""


class UnknownTask(DeliveryError):
    """The app has no task of that name."""


class InvalidArguments(EnqueueError, DeliveryError):
    """The arguments do not fit the signature of the task. `problems` has pairs of argument and message."""

    def __init__(self, message: str, *, task: str, problems: list[tuple[str, str]]) -> None:
        super().__init__(message)
        self.task = task
        self.problems = problems


class AttemptError(JetJobsError):
    """An attempt failed for another reason than an exception of the task."""

    child_error: object = None
    """The error as the child process described it, if it was raised there."""


class JobTimeout(AttemptError):
    """The task ran longer than its timeout."""


class LeaseLost(AttemptError):
    """The lease expired while the task was running: another worker may be running the job now."""


class ChildDied(AttemptError):
    """The child process of the task died (segfault, `os._exit`, out of memory), or it did not start."""


class ChildRaised(AttemptError):
    """Internal: the task raised in its child process, which has also classified the error."""

    def __init__(self, message: str, *, child_error: object, transient: bool, after: timedelta | None) -> None:
        super().__init__(message)
        self.child_error = child_error
        self.transient = transient
        self.after = after


class UnstorableValue(AttemptError):
    """A result or checkpoint has no JSON form or exceeds its limit. The job is not retried."""


class ResultError(JetJobsError):
    """The result of a job is not available."""

    def __init__(self, message: str, *, job_id: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job_id = job_id


class ResultNotReady(ResultError, TimeoutError):
    """The job has not ended within the timeout. It is also a TimeoutError."""


class ResultExpired(ResultError):
    """The job has ended, and its record has expired or was never stored."""


class JobFailed(ResultError):
    """The job is dead. The error of the worker is given as text; exceptions are never sent as objects."""

    def __init__(
        self, message: str, *, reason: str, error_type: str, text: str, traceback: str, job_id: str = ""
    ) -> None:
        super().__init__(message, job_id=job_id)
        self.reason = reason
        self.error_type = error_type
        self.text = text
        self.traceback = traceback


class JobCancelled(ResultError):
    """The job was cancelled and has no result."""


class FlowFailed(ResultError):
    """The flow has no result: jobs of it are dead, or it has not ended by its deadline."""

    def __init__(
        self, message: str, *, flow_id: str, failures: tuple[Failed, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.flow_id = flow_id
        self.failures = failures
        """The jobs that failed. Of many, the first ones."""


class FlowCancelled(ResultError):
    """The flow was cancelled and has no result."""

    def __init__(self, message: str, *, flow_id: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.flow_id = flow_id


class FlowNotFound(JetJobsError):
    """No flow has that id."""


class JobNotFound(JetJobsError):
    """No job, or no dead letter, has that id."""

    def __init__(self, message: str, *, job_id: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job_id = job_id


class JobAmbiguous(JetJobsError):
    """Several jobs have that id, in different queues or tasks. `places` lists them."""

    def __init__(
        self, message: str, *, places: list[tuple[str, str]], job_id: str = "", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.places = places
        self.job_id = job_id


class QueueInUse(JetJobsError):
    """The queue holds jobs or dead letters, or workers or schedules use it. It is not deleted."""


class CheckpointError(JetJobsError):
    """A checkpoint does not fit the requested type."""


class ScheduleNotFound(JetJobsError):
    """No schedule has that name."""


class ScheduleConflict(JetJobsError):
    """Another process has changed the schedule since the caller read it."""


class TokenNotFound(JetJobsError):
    """No token has that name."""


class TokenConflict(JetJobsError):
    """The name of the token is taken."""


class WorkerNotFound(JetJobsError):
    """No running worker has that name."""


class WorkerSilent(JetJobsError):
    """The worker is registered, but did not answer in time: its event loop is blocked, or it has just died."""


for _kind in tuple(globals().values()):
    if isinstance(_kind, type) and issubclass(_kind, JetJobsError):
        public("jetjobs.errors")(_kind)
