"""Complete the beginning or the end of a job id, as tables show it, to the whole id."""

from __future__ import annotations

from collections.abc import Sequence

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.id_search import SEARCH_LIMIT, FoundId, search_anonymous, search_ids
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.model.errors import JobAmbiguous, JobNotFound
from jetjobs.model.wire.ids import is_id

LEAST = 6
"""Characters that a part of an id has at least."""
TOO_SHORT = f"the beginning or end of an id needs {LEAST} characters or more; "
"""The hint for a shorter text that is not an id itself."""
_NAMED = 10
"""Candidates that an error lists."""


async def complete_id(
    jetstream: JetStreamClient,
    text: str,
    queue: str | None = None,
    task: str | None = None,
    *,
    only_dead: bool = False,
) -> str:
    """The only id that begins or ends with the text; the text itself if it is an id, or if no id fits.

    JobAmbiguous if several ids fit, or if one fits but not all ids could be searched. JobNotFound if none fits and
    not all could be searched.
    """
    if len(text) < LEAST or not is_id(text):
        return text
    queues = [queue] if queue is not None else await list_queues(jetstream.connection, jetstream.names)
    if await _exists(jetstream, text, queues, only_dead=only_dead):
        return text
    found, missed = await search_ids(
        jetstream.connection,
        jetstream.names,
        queues,
        lambda job_id: job_id.startswith(text) or job_id.endswith(text),
        task=task or "*",
        only_dead=only_dead,
    )
    if not only_dead:
        found |= await search_anonymous(jetstream.connection, jetstream.names, queues, text, task or "*")
    ids = {one.job_id for one in found}
    if len(ids) == 1 and not missed:
        return ids.pop()
    if not ids and not missed:
        return text
    raise _undecided(text, found, missed)


async def _exists(jetstream: JetStreamClient, job_id: str, queues: Sequence[str], *, only_dead: bool) -> bool:
    if only_dead:
        return bool(await jetstream.dead.subjects_of(job_id))
    return bool(await jetstream.locator.locate(job_id, queues))


def _undecided(text: str, found: frozenset[FoundId], missed: Sequence[str]) -> JobAmbiguous | JobNotFound:
    cut = f"not searched, because of more than {SEARCH_LIMIT:,} ids or a missing permission: " + ", ".join(missed)
    if not found:
        hint = "give the whole id; `--json` and `--quiet` print it"
        return JobNotFound(f"no job with id {text}; {cut}", job_id=text, hint=hint)
    places = sorted((one.queue, one.task) for one in found)
    listed = sorted(found)
    lines = [f"  {one.job_id}  {one.queue}/{one.task}" for one in listed[:_NAMED]]
    if len(listed) > _NAMED:
        lines.append(f"  and {len(listed) - _NAMED:,} more")
    if missed:
        lines.append(f"  {cut}")
    one_fits = "1 job id begins" if len(listed) == 1 else f"{len(listed):,} job ids begin"
    head = f"{one_fits} or end{'s' * (len(listed) == 1)} with {text!r}:"
    hint = "give the whole id" if missed else "give more characters, or the whole id"
    return JobAmbiguous("\n".join([head, *lines]), places=places, job_id=text, hint=hint)
