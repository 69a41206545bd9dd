"""Dead letters over HTTP: list, show, replay and delete them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus

from jetjobs.admin.changes.bulk_changes import SHOWN
from jetjobs.admin.changes.replay import ReplayTally
from jetjobs.admin.dead_letters import DeadLetters
from jetjobs.http.calls.call import Answer, Call
from jetjobs.http.models.admin_requests import DeadFilters, DeadListQuery, Letters, ReplayBody
from jetjobs.http.models.requests import Place
from jetjobs.model.errors import JobNotFound, TopologyMissing
from jetjobs.model.views.audit import filter_text
from jetjobs.model.views.dead_letter import DeadLetter, ReplayAnswer, ReplayOutcome
from jetjobs.model.wire.validation import check_queue


async def list_letters(call: Call, query: DeadListQuery) -> Answer:
    """List dead letters, oldest first."""
    if query.queue is not None:
        call.check_visible(query.queue)
    try:
        page = await call.app.dead.page(query.letters(), query.cursor or 1, query.limit, call.access.queues)
    except TopologyMissing:
        page = ([], None)  # nothing is set up yet
    letters, cursor = page
    return Answer(HTTPStatus.OK, {"items": [letter.summary() for letter in letters], "cursor": cursor})


async def group_letters(call: Call, query: DeadFilters) -> Answer:
    """Count dead letters by queue, task, reason and error type."""
    if query.queue is not None:
        call.check_visible(query.queue)
    try:
        groups = await call.app.dead.groups(query.letters(), call.access.queues)
    except TopologyMissing:
        groups = ()
    return Answer(HTTPStatus.OK, {"items": [group.as_dict() for group in groups], "cursor": None})


async def show_letter(call: Call, query: Place) -> Answer:
    """Show one dead letter in full: reason, history, replays, headers and arguments."""
    letter = await _letter(call, call.path["id"], query.queue, query.task)
    return Answer(HTTPStatus.OK, letter.as_dict())


async def replay_letters(call: Call, body: ReplayBody) -> Answer:
    """Enqueue dead jobs again with their own ids: by ids, by filters, or `all`.

    They start at their first attempt. Safe to repeat. `dry_run` only checks their arguments.
    """
    if body.to_queue is not None:
        call.require_queue(check_queue(body.to_queue))
    dead = await call.dead_letters()
    letters = await _selected(call, dead, body)
    if body.dry_run:
        return await _dry_run(dead, letters, checked=True)
    tally = ReplayTally()
    replaying = dead.replay_many(
        letters, by=call.by, reason=body.reason, to_queue=body.to_queue, selection=_text(body)
    )
    async with contextlib.aclosing(replaying):
        async for answer in replaying:
            tally.add(answer)
    return Answer(HTTPStatus.OK, tally.as_dict(complete=True))


async def delete_letters(call: Call, body: Letters) -> Answer:
    """Permanently delete dead letters: by ids, by filters, or `all`."""
    letters = await _selected(call, call.app.dead, body)
    if body.dry_run:
        return await _dry_run(call.app.dead, letters, checked=False)
    deleted = 0
    async with call.app.audit.together("dead.delete", _text(body), by=call.by, reason=body.reason):
        async for letter in letters:
            deleted += await call.app.dead.delete(letter, by=call.by, reason=body.reason)
    return Answer(HTTPStatus.OK, {"deleted": deleted})


# Parts


def _text(body: Letters) -> str:
    """The ids or the filter, for the audit."""
    return filter_text(body.letters()) if body.ids is None else " ".join(body.ids)


async def _letter(call: Call, job_id: str, queue: str | None, task: str | None) -> DeadLetter:
    """The letter of a job that the caller may see."""
    queue, task = await call.place(job_id, queue, task)
    letter = await call.app.dead.get(job_id, queue=queue, task=task)
    if letter is None:
        raise JobNotFound(f"no dead letter of job {job_id}", job_id=job_id, hint="GET /api/v1/dead lists them")
    return letter


async def _selected(call: Call, dead: DeadLetters, body: Letters) -> AsyncIterator[DeadLetter]:
    """The letters as of now. JobNotFound if an id has none, before anything is changed."""
    if body.queue is not None:
        call.check_visible(body.queue)
    named = None
    if body.ids is not None:
        named = [await _letter(call, job_id, body.queue, body.task) for job_id in dict.fromkeys(body.ids)]
    until = 0 if named is not None else await dead.last_sequence()

    async def letters() -> AsyncIterator[DeadLetter]:
        if named is not None:
            for letter in named:
                yield letter
            return
        async for letter in dead.list(body.letters(), until=until):
            if call.access.sees(letter.queue):
                yield letter

    return letters()


async def _dry_run(dead: DeadLetters, letters: AsyncIterator[DeadLetter], *, checked: bool) -> Answer:
    number = 0
    first: list[str] = []
    tally = ReplayTally()
    async for letter in letters:
        number += 1
        if checked and (why := await dead.check(letter)):
            tally.add(ReplayAnswer(letter, ReplayOutcome.REFUSED, why))
        elif len(first) < SHOWN:
            first.append(letter.id)
    answer = {"dry_run": True, "matching": number, "first": first, "refused": tally.refused}
    return Answer(HTTPStatus.OK, answer)
