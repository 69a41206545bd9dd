"""What a receiver gets: the event of a job's end and its signature, as Standard Webhooks defines them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from typing import Any

from jetjobs.model.job import FINAL, Job
from jetjobs.model.masking import mask_result
from jetjobs.model.wire.lenient_json import as_int, as_time

MAX_RESULT = 64 * 1024
"""Bytes of a result in an event. A larger one is left out."""
KEY_PREFIX = "whsec_"
KEY_BYTES = range(24, 65)


def event_of(job: Job, end: Mapping[str, Any], max_result: int = MAX_RESULT) -> dict[str, Any]:
    """The event of a job that has ended; empty if `end` does not say how.

    `end` is its done record, or the cause of its dead letter with `"state": "dead"`.
    """
    state = end.get("state")
    if state not in FINAL:
        return {}
    moment = as_time(end.get("ended_at") or end.get("at"))
    ended_at = moment.isoformat() if moment else None
    data = {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": state,
        "attempt": as_int(end.get("attempt")) or job.attempt,
        "ended_at": ended_at,
    }
    if state == "succeeded":
        data |= _result(end, max_result)
    elif state == "dead":
        data["error"] = {name: str(end.get(name) or "") for name in ("reason", "type", "text")}
    else:
        data["cancel"] = {name: str(end.get(name) or "") for name in ("by", "reason")}
    return {"type": f"job.{state}", "timestamp": ended_at, "data": data}


def _result(record: Mapping[str, Any], max_result: int) -> dict[str, Any]:
    """The result with its secrets masked, or why it is left out."""
    if "result_object" in record:
        return {"result_omitted": "too large"}
    if "result" not in record:
        return {"result_omitted": "not stored"}
    result = mask_result(record["result"], record.get("secret"))
    if len(encoded(result)) > max_result:
        return {"result_omitted": "too large"}
    return {"result": result}


def encoded(value: Any) -> bytes:
    """Compact JSON in UTF-8. An unpaired surrogate, which an error text may contain, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def read_key(text: str) -> bytes:
    """The bytes of a `whsec_` key. ValueError for an invalid one; the message does not repeat it."""
    try:
        found = text.removeprefix(KEY_PREFIX)
        key = base64.b64decode(found + "=" * (-len(found) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(KEY_PREFIX) or len(key) not in KEY_BYTES:
        raise ValueError(
            f"invalid key: use {KEY_PREFIX} and the base64 of 24 to 64 random bytes, as in"
            f" `echo {KEY_PREFIX}$(openssl rand -base64 32)`"
        )
    return key


def signature(keys: Iterable[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each key, separated by spaces."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
