"""Read checkpoints from their bucket."""

from __future__ import annotations

import json
from typing import Any

from nats.js.errors import NotFoundError

from tests.support.probe import eventually
from tests.support.server import Truth

BUCKET = "jobs-checkpoints"


async def checkpoints(truth: Truth) -> dict[str, dict[str, Any]]:
    """The records of the bucket by key."""
    found = {}
    for subject in await truth.subjects(f"KV_{BUCKET}", f"$KV.{BUCKET}.>"):
        try:
            message = await truth.js.get_last_msg(f"KV_{BUCKET}", subject)
        except NotFoundError:
            continue  # removed since the subjects were listed
        found[subject.removeprefix(f"$KV.{BUCKET}.")] = json.loads(message.data or b"{}")
    return found


async def gone(truth: Truth) -> None:
    """Wait until no checkpoint is left. A worker deletes it right after it reports the end of the job."""
    await eventually(lambda: checkpoints(truth), 30, where=lambda found: found == {})
