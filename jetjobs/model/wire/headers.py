"""The headers of jetjobs and of the server, and the rules for headers that users add."""

from __future__ import annotations

import re
from typing import Final

from jetjobs.model.errors import DefinitionError
from jetjobs.model.wire.validation import has_wire_form

# Headers of jetjobs. A missing header means its default: a job published without jetjobs has none of them.
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
TRACEBACK: Final = "Jetjobs-Traceback"
PRODUCER: Final = "Jetjobs-Producer"
SECRET: Final = "Jetjobs-Secret"
CALLBACK: Final = "Jetjobs-Callback"
PARENT: Final = "Jetjobs-Parent"
ROOT: Final = "Jetjobs-Root"
PAYLOAD: Final = "Jetjobs-Payload"
PAYLOAD_HEADERS: Final = "Jetjobs-Payload-Headers"
OBJECT: Final = "Jetjobs-Object"
CAUSE: Final = "Jetjobs-Cause"
SOURCE: Final = "Jetjobs-Source"
REPLAY: Final = "Jetjobs-Replay"
OF_SCHEDULE: Final = "Jetjobs-Schedule"
SCHEDULED_TIME: Final = "Jetjobs-Scheduled-Time"
OVERLAP: Final = "Jetjobs-Overlap"
PARKED: Final = "Jetjobs-Parked"
KEEP: Final = "Jetjobs-Keep"

# Headers of the jobs of a flow, and of their entries in the ledger.
FLOW: Final = "Jetjobs-Flow"
FLOW_DEADLINE: Final = "Jetjobs-Flow-Deadline"
STEP: Final = "Jetjobs-Step"
NEXT: Final = "Jetjobs-Next"
AFTER: Final = "Jetjobs-After"
MAP: Final = "Jetjobs-Map"
UP: Final = "Jetjobs-Up"
BOUND: Final = "Jetjobs-Bound"
ON_FAILURE: Final = "Jetjobs-On-Failure"
OF_FLOW: Final = frozenset({FLOW, FLOW_DEADLINE, STEP, NEXT, AFTER, MAP, UP, BOUND, ON_FAILURE})
"""Those of jobs: every move keeps them."""
INDEX: Final = "Jetjobs-Index"
STATE: Final = "Jetjobs-State"
RESULT: Final = "Jetjobs-Result"
RESULT_OBJECT: Final = "Jetjobs-Result-Object"

# Headers of the server.
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
INCREMENT: Final = "Nats-Incr"
KV_OPERATION: Final = "KV-Operation"

OWN_PREFIXES: Final = ("nats-", "jetjobs-")
"""Prefixes, in any case, of headers of the server and of jetjobs. Every move of a job rebuilds these headers."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


def check_header(name: str, value: str) -> None:
    """DefinitionError for a header that would get lost, forge another one, or break the protocol."""
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise DefinitionError(f"invalid header name {name!r}")
    if name.lower().startswith(OWN_PREFIXES):
        raise DefinitionError(f"header {name!r} is reserved", hint="names may not begin with Nats- or Jetjobs-")
    if not isinstance(value, str) or any(c in value for c in "\r\n\0"):
        raise DefinitionError(f"header {name!r} must be text without line breaks or NUL")
    if not has_wire_form(value):
        raise DefinitionError(f"header {name!r} cannot be encoded as UTF-8")
    if value != value.strip():
        raise DefinitionError(f"header {name!r} begins or ends with white space, which NATS strips")
