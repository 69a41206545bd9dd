"""Build and parse job ids."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import random
import re
import time
from typing import NamedTuple

from jetjobs.model.errors import DefinitionError

NO_KEY = "-"
"""The key token of a job that has no key."""

MAX_OWN_ID = 100
"""Characters of an id that the caller chooses. With a key token it stays within the 128 of any id."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_KEYED = re.compile(r"(k[a-z2-7]{26})-(.+)", re.ASCII)
_NESTED = re.compile(r"x[0-9a-f]{12}-.+", re.ASCII)
_ANONYMOUS = re.compile(r"s[0-9a-f]{14}-([1-9][0-9]{0,18})", re.ASCII)

# One generator per process, seeded again after a fork: two children must not create the same ids.
_random = random.SystemRandom()
_fast = random.Random(_random.getrandbits(256))
os.register_at_fork(after_in_child=lambda: _fast.seed(_random.getrandbits(256)))


class JobId(NamedTuple):
    """The two subject tokens of an id."""

    key: str
    uid: str

    def __str__(self) -> str:
        return self.uid if self.key == NO_KEY else f"{self.key}-{self.uid}"


def new_uid() -> str:
    """A UUIDv7 in hex: 48 bits of milliseconds, then random bits, so that ids sort by time."""
    value = (int(time.time() * 1000) << 80) | _fast.getrandbits(80)
    value = (value & ~(0xF << 76) & ~(0x3 << 62)) | (0x7 << 76) | (0x2 << 62)
    return f"{value:032x}"


def new_run() -> str:
    """A random token that distinguishes jobs with the same id, for example before and after a replay."""
    return f"{_fast.getrandbits(40):010x}"


def key_token(key: str) -> str:
    """The subject token of an idempotency key: a hash, so that any text can be a key."""
    return "k" + _digest(key.encode())


@functools.lru_cache(1024)
def flow_key(flow_id: str) -> str:
    """The key token of all jobs of a flow: one filter finds them."""
    return key_token(f"flow\0{flow_id}")


def nested_node(parent_uid: str, node: str) -> str:
    """The name of a step of a flow that job `parent_uid` returned. It does not grow with the depth of nesting."""
    return f"x{hashlib.sha256(parent_uid.encode()).hexdigest()[:12]}-{node}"


def is_nested_node(node: str) -> bool:
    """Whether a node is a step of a flow that a job has returned."""
    return _NESTED.fullmatch(node) is not None


def returned_flow_id(job_id: str, run: str) -> str:
    """The id of the flow that a job outside of flows returned. Each run of the job has its own."""
    return "f" + _digest(f"{job_id}\0{run}".encode())


def request_id(caller: str, key: str) -> str:
    """The job id of a caller's request with an `Idempotency-Key`."""
    return "i" + _digest(f"{caller}\0{key}".encode())


def request_run(content: bytes) -> str:
    """The run of such a request: a repeat with other content has another one."""
    return "r" + _digest(content)


def _digest(data: bytes) -> str:
    return base64.b32encode(hashlib.sha256(data).digest())[:26].decode().lower()


def webhook_id(*parts: str) -> str:
    """The id of the webhook of one run of a job, the same for every process that stores it."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return "w" + base64.b32encode(digest)[:26].decode().lower()


def parse_id(job_id: str) -> JobId:
    """The tokens of a public id. Each id has exactly one interpretation."""
    keyed = _KEYED.fullmatch(job_id)
    return JobId(keyed[1], keyed[2]) if keyed else JobId(NO_KEY, job_id)


def join_id(key: str, uid: str) -> str:
    """The public id of two subject tokens. ValueError unless `parse_id` returns the same tokens."""
    if key == NO_KEY:
        if _ID.fullmatch(uid) and not _KEYED.fullmatch(uid):
            return uid
    else:
        job_id = f"{key}-{uid}"
        keyed = _KEYED.fullmatch(job_id)
        if keyed and keyed[1] == key and _ID.fullmatch(job_id):
            return job_id
    raise ValueError(f"invalid key and id tokens in the subject: {key!r}, {uid!r}")


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def check_job_id(job_id: str) -> str:
    """The id itself, or DefinitionError if a caller may not choose it."""
    if not isinstance(job_id, str) or not is_id(job_id) or len(job_id) > MAX_OWN_ID:
        raise DefinitionError(
            f"invalid job_id {job_id!r}",
            hint=f"an id is 1 to {MAX_OWN_ID} letters, digits, '-' or '_'",
        )
    if _KEYED.fullmatch(job_id):
        raise DefinitionError(f"invalid job_id {job_id!r}: this form is reserved for jobs with a key")
    return job_id


def check_flow_id(flow_id: str) -> str:
    """The id itself, or DefinitionError if a flow cannot have it."""
    if not isinstance(flow_id, str) or not is_id(flow_id) or len(flow_id) > MAX_OWN_ID:
        hint = f"an id is 1 to {MAX_OWN_ID} letters, digits, '-' or '_'"
        raise DefinitionError(f"invalid flow id {flow_id!r:.120}", hint=hint)
    return flow_id


def anonymous_id(stored_at: float, sequence: int) -> str:
    """The id of a job published without jetjobs: the time, in microseconds, and the sequence of its first message.

    It is the same on every delivery, but differs in a stream that was deleted and created again.
    """
    return f"s{round(stored_at * 1e6):014x}-{sequence}"


def anonymous_sequence(job_id: str) -> int | None:
    """The sequence in an id made by `anonymous_id`; None for any other id."""
    made = _ANONYMOUS.fullmatch(job_id)
    return int(made[1]) if made else None
