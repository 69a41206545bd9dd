"""Build and parse the names on the wire: subjects, streams, consumers, buckets and objects."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from jetjobs.model.errors import DefinitionError
from jetjobs.model.wire.ids import JobId
from jetjobs.model.wire.namespaces import check_namespace
from jetjobs.model.wire.validation import token_of

WIRE_VERSION: Final = "2"
"""The layout of streams, lanes and headers. Stored in the metadata of streams."""

LATER: Final = "later"
"""Jobs that have never been delivered and wait for their due time."""
RETRY: Final = "retry"
"""Jobs that were delivered and wait again: after a failure, a snooze, or because they are parked. ADR 32."""
GATE: Final = "gate"
"""Jobs of a flow that wait for other steps, due at the deadline of the flow."""
WAITING: Final = (LATER, RETRY, GATE)
"""Lanes whose jobs the server moves when they are due. No consumer reads them."""
MARK: Final = "mark"
"""Messages that are not jobs: the pin, and marks of schedules and flows. No consumer reads this lane."""
RETURNED: Final = "returned"
"""Jobs that a worker released. They are served first, so that they do not wait behind the backlog. ADR 12.
A header holds the job's own lane."""
Priority = Literal["high", "normal", "low"]
PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")
"""Each is a lane."""
PULLED: Final = (*PRIORITIES, RETURNED)
"""Lanes that workers pull from."""

LEADER: Final = "leader"
"""Key of the leader lock in the bucket of locks."""
PROGRESS: Final = "progress"
"""Event kind of a running job's progress."""

MAX_DELIVERIES: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.*.*"
"""Published by the server when it stops delivering a message, for every stream and consumer of the account."""


def check_priority(priority: object, of: str = "") -> Priority:
    """The priority itself. DefinitionError for any other text; `of` precedes its message."""
    if priority not in PRIORITIES:
        raise DefinitionError(f"{of}invalid priority {priority!r:.80}: use {', '.join(PRIORITIES)}")
    return priority


class JobSubject(NamedTuple):
    """The parts of a job's subject in a work stream: `{namespace}.work.{queue}.{lane}.{task}.{key}.{uid}`.

    `key` and `uid` are empty in the subject of a job published without jetjobs.
    """

    namespace: str
    queue: str
    lane: str
    task: str
    key: str = ""
    uid: str = ""

    @classmethod
    def parse(cls, subject: str) -> JobSubject:
        """ValueError for a subject of any other form.

        >>> JobSubject.parse("shop.work.mail.high.send.-.42").lane
        'high'
        """
        # Written out, because this runs for every delivery.
        tokens = subject.split(".")
        count = len(tokens)
        if count == 7:
            namespace, kind, queue, lane, task, key, uid = tokens
        elif count == 5:
            namespace, kind, queue, lane, task = tokens
            key = uid = ""
        else:
            raise ValueError(f"the subject has {count} tokens; that of a job has 5 or 7")
        if kind != "work" or "" in tokens:
            raise ValueError(f"not the subject of a job: {subject!r}")
        return tuple.__new__(cls, (namespace, queue, lane, task, key, uid))

    @classmethod
    def parse_any(cls, subject: str) -> JobSubject:
        """`parse` that never raises: for any message of a work stream, and for a subject from a header.

        >>> JobSubject.parse_any("shop.work.mail.high.send.a.b.c").task
        'send'
        """
        try:
            return cls.parse(subject)
        except ValueError:
            tokens = [*subject.split("."), "", "", "", "", ""]
            return cls(tokens[0], tokens[2], tokens[3], tokens[4] or "unknown")

    @property
    def job_id(self) -> str:
        """The public id; empty if the subject has none."""
        return str(JobId(self.key, self.uid)) if self.uid else ""

    def __str__(self) -> str:
        last = f".{self.key}.{self.uid}" if self.uid else ""
        return f"{self.namespace}.work.{self.queue}.{self.lane}.{self.task}{last}"


class DeadSubject(NamedTuple):
    """The parts of a dead letter's subject: `{namespace}.dead.{queue}.{task}.{id}`."""

    namespace: str
    queue: str
    task: str
    job_id: str

    @classmethod
    def parse(cls, subject: str) -> DeadSubject:
        """ValueError for a subject of any other form."""
        tokens = subject.split(".")
        if len(tokens) != 5 or tokens[1] != "dead" or not all(tokens):
            raise ValueError(f"not the subject of a dead letter: {subject!r}")
        del tokens[1]
        return cls(*tokens)


def last_token(subject: str) -> str:
    """The last token of a subject: an id, a key, or the name of a schedule.

    >>> last_token("shop.work.mail.mark.schedule.nightly")
    'nightly'
    """
    return subject.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one namespace."""

    namespace: str

    def __post_init__(self) -> None:
        check_namespace(self.namespace)

    # Work streams: one per queue.

    def work_stream(self, queue: str) -> str:
        return f"{self.namespace}-work-{queue}"

    @property
    def work_filter(self) -> str:
        """Matches all subjects of work streams."""
        return f"{self.namespace}.work.>"

    def queue_of(self, stream: str) -> str | None:
        """The queue of a work stream; None for any other stream."""
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
        """Matches the job in any lane of its queue."""
        return self.job(queue, "*", task, job_id.key, job_id.uid)

    def id_anywhere(self, queue: str, job_id: JobId) -> str:
        """Matches the job in any lane of the queue, with any task."""
        return self.job(queue, "*", "*", job_id.key, job_id.uid)

    def key_anywhere(self, queue: str, task: str, key: str) -> str:
        """Matches any live job with that key."""
        return f"{self.namespace}.work.{queue}.*.{task}.{key}.*"

    def pin(self, queue: str) -> str:
        return f"{self.namespace}.work.{queue}.{MARK}._pin"

    def schedule_mark(self, queue: str, schedule: str) -> str:
        """The mark that says how far a schedule is planned; `*` for all schedules of the queue."""
        return f"{self.namespace}.work.{queue}.{MARK}.schedule.{schedule}"

    def planned(self, queue: str, key: str) -> str:
        """Matches the jobs with that key in lane `later`, with any task."""
        return self.job(queue, LATER, "*", key, "*")

    # Streams and buckets of ended and running jobs.
    @property
    def dead_stream(self) -> str:
        return f"{self.namespace}-dead"

    @property
    def dead_filter(self) -> str:
        return f"{self.namespace}.dead.>"

    def dead(self, queue: str, task: str, job_id: str) -> str:
        """The subject of a dead letter; each part may be `*`."""
        return f"{self.namespace}.dead.{queue}.{task}.{job_id}"

    def dead_of(self, queue: str) -> str:
        """Matches the dead letters of one queue."""
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
        """Includes the run, so that a reused id does not find an older checkpoint; the run may be `*`."""
        return f"{job_id}.{run}"

    @property
    def workers_bucket(self) -> str:
        return f"{self.namespace}-workers"

    def task_key(self, task: str, fingerprint: str) -> str:
        """Key of the definition of a task in the registry of workers; each part may be `*`."""
        return f"task.{task}.{fingerprint}"

    @property
    def cancelled_bucket(self) -> str:
        return f"{self.namespace}-cancelled"

    @property
    def tokens_bucket(self) -> str:
        return f"{self.namespace}-tokens"

    @property
    def audit_stream(self) -> str:
        return f"{self.namespace}-audit"

    def audit(self, action: str) -> str:
        """Subject of the entries of an action such as `queue.pause`; each part may be `*`, and `>` is for all."""
        return f"{self.namespace}.audit.{action}"

    def action_of(self, subject: str) -> str:
        return subject.removeprefix(f"{self.namespace}.audit.")

    def control(self, word: str) -> str:
        """Subject of a control message, on core NATS."""
        return f"{self.namespace}.control.{word}"

    def job_event(self, word: str, queue: str, task: str, job_id: str) -> str:
        """Subject of live events of a job, on core NATS; each part may be `*`."""
        return f"{self.namespace}.events.job.{word}.{queue}.{task}.{job_id}"

    def worker_event(self, word: str, worker: str) -> str:
        """Subject of live events of a worker, on core NATS; each part may be `*`."""
        return f"{self.namespace}.events.worker.{word}.{worker if worker == '*' else token_of(worker)}"

    def kind_of_event(self, subject: str) -> str:
        """The kind in the subject of a live event, such as `job.succeeded`."""
        return ".".join(subject.removeprefix(f"{self.namespace}.events.").split(".")[:2])

    @property
    def control_workers(self) -> str:
        """Requests to all workers."""
        return self.control("workers")

    def control_worker(self, key: str) -> str:
        """Requests to the worker with that key in the registry."""
        return self.control(f"worker.{key}")

    @property
    def payload_store(self) -> str:
        return f"{self.namespace}-payloads"


def kv_stream(bucket: str) -> str:
    return f"KV_{bucket}"


def kv_subject(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{key}"


def kv_key(subject: str) -> str:
    """The key in the subject of a bucket.

    >>> kv_key("$KV.shop-schedules.nightly.report")
    'nightly.report'
    """
    return subject.split(".", 2)[2]


def kv_key_tokens(subject: str) -> list[str]:
    """The tokens of the key in the subject of a bucket.

    >>> kv_key_tokens("$KV.shop-done-mail.send.42")
    ['send', '42']
    """
    return subject.split(".")[2:]


def object_stream(store: str) -> str:
    return f"OBJ_{store}"


def object_chunks(store: str, nuid: str) -> str:
    """Subject of the chunks of one version of an object; `>` for all."""
    return f"$O.{store}.C.{nuid}"


def object_meta(store: str, name: str) -> str:
    """Subject of the metadata of an object."""
    return f"$O.{store}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def object_metas(store: str) -> str:
    return f"$O.{store}.M.>"


def body_object(job_id: str, run: str, token: str = "") -> str:
    """Object name of a job's body. It includes the run, so that a reused id does not find an older body."""
    return f"{job_id}.{run}.{token}" if token else f"{job_id}.{run}"


def headers_object(job_id: str, run: str) -> str:
    return f"{job_id}.{run}.headers"


def result_object(job_id: str, run: str, delivery: str) -> str:
    """Object name of a result. It includes the delivery, because the record of the first one to end stays."""
    return f"{job_id}.{run}.result-{delivery}"
