"""Make and take apart job ids. Pure but for the randomness and time an id is made of."""

from __future__ import annotations

import base64
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
"""Of an id the caller chooses: together with a key token it must stay within the 128 of any id."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_KEYED = re.compile(r"(k[a-z2-7]{26})-(.+)", re.ASCII)
_PLACE = re.compile(r"s[0-9a-f]{14}-([1-9][0-9]{0,18})", re.ASCII)

# One generator a process, reseeded after a fork: two children must not mint the same ids.
_random = random.SystemRandom()
_fast = random.Random(_random.getrandbits(256))
os.register_at_fork(after_in_child=lambda: _fast.seed(_random.getrandbits(256)))


class JobId(NamedTuple):
    """The two subject tokens an id stands for."""

    key: str
    uid: str

    def __str__(self) -> str:
        return self.uid if self.key == NO_KEY else f"{self.key}-{self.uid}"


def new_uid() -> str:
    """A UUIDv7 in hex: 48 bits of milliseconds, then randomness, so ids sort by time."""
    value = (int(time.time() * 1000) << 80) | _fast.getrandbits(80)
    value = (value & ~(0xF << 76) & ~(0x3 << 62)) | (0x7 << 76) | (0x2 << 62)
    return f"{value:032x}"


def new_run() -> str:
    """A token that tells one life of an id from another life of the same id."""
    return f"{_fast.getrandbits(40):010x}"


def key_token(key: str) -> str:
    """The subject token of an idempotency key: its hash, so any text may be a key."""
    digest = hashlib.sha256(key.encode()).digest()
    return "k" + base64.b32encode(digest)[:26].decode().lower()


def parse_id(job_id: str) -> JobId:
    """The tokens of a public id. Every id has exactly one reading, so a lookup never guesses."""
    keyed = _KEYED.fullmatch(job_id)
    return JobId(keyed[1], keyed[2]) if keyed else JobId(NO_KEY, job_id)


def join_id(key: str, uid: str) -> str:
    """The public id of two subject tokens. ValueError unless `parse_id` would give the same tokens back."""
    if key == NO_KEY:
        if _ID.fullmatch(uid) and not _KEYED.fullmatch(uid):
            return uid
    else:
        job_id = f"{key}-{uid}"
        keyed = _KEYED.fullmatch(job_id)
        if keyed and keyed[1] == key and _ID.fullmatch(job_id):
            return job_id
    raise ValueError(f"the subject's key and id tokens {key!r}, {uid!r} are not usable")


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def check_job_id(job_id: str) -> str:
    """The caller's own id, or DefinitionError when it cannot be a subject token."""
    if not isinstance(job_id, str) or not is_id(job_id) or len(job_id) > MAX_OWN_ID:
        raise DefinitionError(
            f"job_id {job_id!r} is not usable",
            hint=f"an id is 1 to {MAX_OWN_ID} letters, digits, '-' or '_'",
        )
    if _KEYED.fullmatch(job_id):
        raise DefinitionError(f"job_id {job_id!r} has the form reserved for jobs with a key")
    return job_id


def anonymous_id(stored_at: float, sequence: int) -> str:
    """The id of a job published without an id: when, to the microsecond, and where its first message was stored.

    It is the same on every delivery, and another one in a stream that was deleted and created again.
    """
    return f"s{round(stored_at * 1e6):014x}-{sequence}"


def anonymous_sequence(job_id: str) -> int | None:
    """The sequence in an id that `anonymous_id` made; None in any other."""
    made = _PLACE.fullmatch(job_id)
    return int(made[1]) if made else None
