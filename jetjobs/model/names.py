"""Every subject, stream, consumer, bucket and header on the wire. Nothing else spells one out."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Final, TypeGuard

from jetjobs.model.errors import DefinitionError
from jetjobs.model.ids import JobId

WIRE_VERSION: Final = "1"

LATER: Final = "later"
"""Jobs that have never been delivered and wait for their time."""
RETRY: Final = "retry"
"""Jobs that were delivered and wait again: after a failure, a snooze, or parked. ADR 32."""
WAITING: Final = (LATER, RETRY)
"""Lanes whose jobs the server moves when they are due. No consumer reads them."""
MARK: Final = "mark"
"""What is no job: the pin, and how far schedules are planned. No consumer reads it."""
BACK: Final = "back"
"""Jobs that a worker gave back: served before all others, so that they do not wait behind the backlog. ADR 12.
The lane a job is for is in a header while it is here."""
RESERVED_LANES: Final = frozenset({*WAITING, MARK, BACK})
PRIORITIES: Final = ("high", "normal", "low")
PULLED: Final = (*PRIORITIES, BACK)
"""Every lane that workers take jobs from."""

# Headers of ours. What is absent has its default: a hand-made job has none of them.
ATTEMPT: Final = "Jetjobs-Attempt"
HOP: Final = "Jetjobs-Hop"
RUN: Final = "Jetjobs-Run"
ENQUEUED_AT: Final = "Jetjobs-Enqueued-At"
DUE_AT: Final = "Jetjobs-Due-At"
LANE: Final = "Jetjobs-Lane"
CRASHES: Final = "Jetjobs-Crashes"
DEADLINE: Final = "Jetjobs-Deadline"
MAX_ATTEMPTS: Final = "Jetjobs-Max-Attempts"
RETRY_POLICY: Final = "Jetjobs-Retry"
REPLY: Final = "Jetjobs-Reply"
ERRORS: Final = "Jetjobs-Errors"
PRODUCER: Final = "Jetjobs-Producer"
SECRET: Final = "Jetjobs-Secret"
PARENT: Final = "Jetjobs-Parent"
ROOT: Final = "Jetjobs-Root"
PAYLOAD: Final = "Jetjobs-Payload"
PAYLOAD_HEADERS: Final = "Jetjobs-Payload-Headers"
OBJECT: Final = "Jetjobs-Object"
CAUSE: Final = "Jetjobs-Cause"
SOURCE: Final = "Jetjobs-Source"
REPLAY: Final = "Jetjobs-Replay"
OF_SCHEDULE: Final = "Jetjobs-Schedule"
SLOT: Final = "Jetjobs-Slot"
OVERLAP: Final = "Jetjobs-Overlap"

# Headers of the server's.
MSG_ID: Final = "Nats-Msg-Id"
TTL: Final = "Nats-TTL"
ROLLUP: Final = "Nats-Rollup"
SCHEDULE: Final = "Nats-Schedule"
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SCHEDULER: Final = "Nats-Scheduler"
SCHEDULE_NEXT: Final = "Nats-Schedule-Next"
EXPECTED_LAST_SUBJECT_SEQ: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQ: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"
KV_OPERATION: Final = "KV-Operation"

# Keys of the bucket of locks.
LEADER: Final = "leader"

# Words of events.
PROGRESS: Final = "progress"

MAX_DELIVERIES: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.*.*"
"""Published by the server when it stops delivering a message, for every stream and consumer of the account."""

OWN_PREFIXES: Final = ("nats-", "jetjobs-")
"""Headers that begin so (in any case) are the server's or ours: dropped and rebuilt at every move."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_KEY = re.compile(r"[^\s\x00-\x1f\x7f.*>\ud800-\udfff]+(?:\.[^\s\x00-\x1f\x7f.*>\ud800-\udfff]+)*")
"""What a subject can hold, and no wildcard."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


def check_token(what: str, token: str) -> str:
    """The token itself, or DefinitionError: `what` names it in the text."""
    if not is_token(token):
        raise DefinitionError(
            f"{what} {token!r} is not a usable name",
            hint="a name is 1 to 64 letters, digits, '-' or '_'",
        )
    return token


def is_token(text: object) -> TypeGuard[str]:
    """Whether it can be the name of a queue or task."""
    return isinstance(text, str) and _TOKEN.fullmatch(text) is not None


def check_lane(lane: str) -> str:
    if check_token("lane", lane) in RESERVED_LANES:
        raise DefinitionError(f"lane {lane!r} is reserved")
    return lane


def check_schedule_name(name: str) -> str:
    if not is_schedule_name(check_token("schedule", name)):
        raise DefinitionError(f"schedule {name!r} begins with '_'", hint="such names are ours")
    return name


def check_schedule_key(name: str) -> str:
    """A name that can stand in the bucket, though perhaps no schedule may have it: somebody's hand wrote it."""
    if not isinstance(name, str) or not _KEY.fullmatch(name):
        raise DefinitionError(
            f"schedule {name!r} is not a usable name",
            hint="jetjobs schedules list and jetjobs doctor name them all",
        )
    return name


def is_schedule_name(name: str) -> bool:
    """Whether a schedule may have this name."""
    return _TOKEN.fullmatch(name) is not None and not name.startswith("_")


def token_of(text: str) -> str:
    """Any text as one subject token, as far as that goes.

    >>> token_of("web-1.example.org")
    'web-1-example-org'
    """
    return re.sub(r"[^A-Za-z0-9_-]", "-", text, flags=re.ASCII)[:100] or "-"


def has_wire_form(text: str) -> bool:
    """False for half a surrogate pair: Python can hold one, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_header(name: str, value: str) -> None:
    """Refuse a header that would be lost, forged or break the protocol."""
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise DefinitionError(f"header name {name!r} is not usable")
    if name.lower().startswith(OWN_PREFIXES):
        raise DefinitionError(f"header {name!r} is reserved", hint="names may not begin with Nats- or Jetjobs-")
    if not isinstance(value, str) or any(c in value for c in "\r\n\0"):
        raise DefinitionError(f"header {name!r} must be text without line breaks or NUL")
    if not has_wire_form(value):
        raise DefinitionError(f"header {name!r} has no UTF-8 form")
    if value != value.strip():
        raise DefinitionError(f"header {name!r} begins or ends with white space, which the wire drops")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one namespace. Cheap to make, compares by value."""

    namespace: str = "jobs"

    def __post_init__(self) -> None:
        check_token("namespace", self.namespace)

    # Work streams: one a queue.

    def work_stream(self, queue: str) -> str:
        return f"{self.namespace}-work-{queue}"

    @property
    def work_filter(self) -> str:
        """Matches everything that work streams take."""
        return f"{self.namespace}.work.>"

    def queue_of(self, stream: str) -> str | None:
        """The queue of a work stream; None for a stream that is none of ours."""
        prefix = f"{self.namespace}-work-"
        return stream.removeprefix(prefix) if stream.startswith(prefix) else None

    def queue_filter(self, queue: str) -> str:
        """Matches every job of the queue, and its pin."""
        return f"{self.namespace}.work.{queue}.>"

    def lane_filter(self, queue: str, lane: str) -> str:
        return f"{self.namespace}.work.{queue}.{lane}.>"

    def job(self, queue: str, lane: str, task: str, key: str, uid: str) -> str:
        return f"{self.namespace}.work.{queue}.{lane}.{task}.{key}.{uid}"

    def job_anywhere(self, queue: str, task: str, job_id: JobId) -> str:
        """Matches the job in whatever lane of its queue it stands."""
        return self.job(queue, "*", task, job_id.key, job_id.uid)

    def id_anywhere(self, queue: str, job_id: JobId) -> str:
        """Matches the job in whatever lane of the queue it stands, and whatever its task is."""
        return self.job(queue, "*", "*", job_id.key, job_id.uid)

    def key_anywhere(self, queue: str, task: str, key: str) -> str:
        """Matches any live job of that key."""
        return f"{self.namespace}.work.{queue}.*.{task}.{key}.*"

    def pin(self, queue: str) -> str:
        return f"{self.namespace}.work.{queue}.{MARK}._pin"

    def schedule_mark(self, queue: str, schedule: str) -> str:
        """How far a schedule has been planned; `*` for all of the queue."""
        return f"{self.namespace}.work.{queue}.{MARK}.schedule.{schedule}"

    def planned(self, queue: str, key: str) -> str:
        """Matches the jobs of that key that wait in lane `later`, of whatever task."""
        return self.job(queue, LATER, "*", key, "*")

    # Where jobs end.

    @property
    def dead_stream(self) -> str:
        return f"{self.namespace}-dead"

    @property
    def dead_filter(self) -> str:
        return f"{self.namespace}.dead.>"

    def dead(self, queue: str, task: str, job_id: str) -> str:
        """A letter's subject; each part may be `*`."""
        return f"{self.namespace}.dead.{queue}.{task}.{job_id}"

    def dead_of(self, queue: str) -> str:
        """Matches the letters of one queue."""
        return f"{self.namespace}.dead.{queue}.>"

    def done_bucket(self, queue: str) -> str:
        return f"{self.namespace}-done-{queue}"

    def done_key(self, task: str, job_id: str) -> str:
        return f"{task}.{job_id}"

    @property
    def running_bucket(self) -> str:
        return f"{self.namespace}-running"

    @property
    def locks_bucket(self) -> str:
        return f"{self.namespace}-locks"

    @property
    def schedules_bucket(self) -> str:
        return f"{self.namespace}-schedules"

    @property
    def checkpoints_bucket(self) -> str:
        return f"{self.namespace}-checkpoints"

    def checkpoint_key(self, job_id: str, run: str) -> str:
        """Of one life of the job, so that a reused id never meets an older one; the run may be `*`."""
        return f"{job_id}.{run}"

    @property
    def workers_bucket(self) -> str:
        return f"{self.namespace}-workers"

    @property
    def cancelled_bucket(self) -> str:
        return f"{self.namespace}-cancelled"

    def control(self, word: str) -> str:
        """Subject of a control message, on core NATS."""
        return f"{self.namespace}.control.{word}"

    def job_event(self, word: str, queue: str, task: str, job_id: str) -> str:
        """Subject of what is told of a job while it happens, on core NATS; each part may be `*`."""
        return f"{self.namespace}.events.job.{word}.{queue}.{task}.{job_id}"

    def worker_event(self, word: str, worker: str) -> str:
        """Subject of what a worker tells of itself, by its name; each part may be `*`."""
        return f"{self.namespace}.events.worker.{word}.{worker if worker == '*' else token_of(worker)}"

    def kind_of_event(self, subject: str) -> str:
        """`job.succeeded`, from the subject of such an event."""
        return ".".join(subject.removeprefix(f"{self.namespace}.events.").split(".")[:2])

    @property
    def control_workers(self) -> str:
        """Requests to all workers."""
        return self.control("workers")

    def control_worker(self, key: str) -> str:
        """Requests to the worker of that key in the registry."""
        return self.control(f"worker.{key}")

    @property
    def payload_store(self) -> str:
        return f"{self.namespace}-payloads"


def kv_stream(bucket: str) -> str:
    return f"KV_{bucket}"


def kv_subject(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{key}"


def object_stream(store: str) -> str:
    return f"OBJ_{store}"


def object_chunks(store: str, nuid: str) -> str:
    """Where the chunks of one writing of an object stand; `>` for all."""
    return f"$O.{store}.C.{nuid}"


def object_meta(store: str, name: str) -> str:
    """Where the entry of the object of that name stands."""
    return f"$O.{store}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def object_metas(store: str) -> str:
    return f"$O.{store}.M.>"


def body_object(job_id: str, run: str, token: str = "") -> str:
    """Name of a job's body in the object store: of one life, so that a reused id never meets an older one."""
    return f"{job_id}.{run}.{token}" if token else f"{job_id}.{run}"


def headers_object(job_id: str, run: str) -> str:
    return f"{job_id}.{run}.headers"


def result_object(job_id: str, run: str, delivery: str) -> str:
    """Name of a result: of one delivery, since the record of the first that ends is the one that stays."""
    return f"{job_id}.{run}.result-{delivery}"
