"""Dead letters as lines of JSON: written whole to a file, checked and put back from one."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.dead_letters import HEADER_LIMIT
from jetjobs.jetstream.messages.codec import header_size
from jetjobs.model.errors import DefinitionError, MalformedJob
from jetjobs.model.public import public
from jetjobs.model.views.dead_letter import DeadLetter
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.headers import check_header
from jetjobs.model.wire.ids import is_id
from jetjobs.model.wire.lenient_json import read_json, write_json
from jetjobs.model.wire.validation import check_token

_ROOM = 1024
"""For what the publish itself adds to the headers."""


@public("jetjobs.admin")
class ImportReport(NamedTuple):
    """What became of a file's lines."""

    imported: int
    already_there: int
    problems: tuple[tuple[int, str], ...]
    """Number of each line that is no usable letter, and what is wrong with it."""


class Parsed(NamedTuple):
    """A line that has been checked."""

    subject: str
    headers: dict[str, str]
    body: bytes
    objects: dict[str, bytes]

    @property
    def place(self) -> tuple[str, str, str]:
        """Queue, task and id."""
        queue, task, job_id = self.subject.split(".")[-3:]
        return queue, task, job_id


async def to_json(jetstream: JetStreamClient, letter: DeadLetter) -> dict[str, Any]:
    """A letter as one JSON object, whole. An object that is gone from the store is `null`."""
    objects: dict[str, str | None] = {}
    for name in objects_of(letter.headers):
        try:
            objects[name] = base64.b64encode(await jetstream.payloads.get(name)).decode()
        except MalformedJob:
            objects[name] = None
    return {
        "subject": jetstream.names.dead(letter.queue, letter.task, letter.id),
        "headers": letter.headers,
        "body": base64.b64encode(letter.body).decode(),
        "objects": objects,
        **letter.summary(),
    }


async def from_json(jetstream: JetStreamClient, value: Any) -> bool:
    """Put an exported letter back. False when one is there already; ValueError when it cannot be a letter here."""
    line = parse(value, jetstream.names.namespace, jetstream.connection.max_payload)
    queue, task, job_id = line.place
    if await jetstream.dead.get(queue, task, job_id) is not None:
        return False
    if line.objects and await jetstream.locator.find_live(queue, task, job_id) is not None:
        raise ValueError("a live job of this id may be using the objects of this letter")
    labels = {"queue": queue, "task": task, "id": job_id, "run": line.headers.get(h.RUN, "")}
    for name, data in line.objects.items():
        await jetstream.payloads.put(name, data, labels)
    return await jetstream.dead.restore(line.subject, line.body, line.headers)


async def write_file(jetstream: JetStreamClient, file: IO[str], letter: DeadLetter) -> None:
    """One line."""
    file.write(write_json(await to_json(jetstream, letter)) + "\n")


async def read_file(jetstream: JetStreamClient, file: IO[str]) -> ImportReport:
    """Every line by itself: one that is wrong does not stop the others. Importing a file again changes nothing."""
    imported = already = 0
    problems: list[tuple[int, str]] = []
    number = 0
    while line := file.readline():
        number += 1
        if not line.strip():
            continue
        try:
            if await from_json(jetstream, read_json(line)):
                imported += 1
            else:
                already += 1
        except ValueError as error:
            problems.append((number, str(error)))
    return ImportReport(imported, already, tuple(problems))


def objects_of(headers: Mapping[str, str]) -> list[str]:
    """Names in the object store that a letter refers to."""
    return [headers[name] for name in (h.PAYLOAD, h.PAYLOAD_HEADERS) if headers.get(name)]


def parse(value: Any, namespace: str, max_payload: int) -> Parsed:
    """An exported letter, checked in every part: a file may come from anywhere."""
    if not isinstance(value, dict):
        raise ValueError("no exported dead letter: not a JSON object")
    subject = _subject(value.get("subject"), namespace)
    headers = _headers(value.get("headers"))
    body = _bytes("body", value.get("body"))
    objects = _objects(value.get("objects", {}), headers)
    size = header_size(headers) + _ROOM
    if size > HEADER_LIMIT + _ROOM or size + len(body) > max_payload:
        raise ValueError(
            f"no dead letter for this server: {size + len(body):,} bytes, of {max_payload:,} possible"
        )
    return Parsed(subject, headers, body, objects)


def _subject(value: Any, namespace: str) -> str:
    tokens = value.split(".") if isinstance(value, str) else []
    try:
        if len(tokens) != 5 or tokens[:2] != [namespace, "dead"] or not is_id(tokens[4]):
            raise DefinitionError("")
        check_token("queue", tokens[2])
        if not is_id(tokens[3]):
            raise DefinitionError("")
    except DefinitionError:
        raise ValueError(f"{value!r} is no subject of a dead letter in namespace {namespace!r}") from None
    return ".".join(tokens)


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("no exported dead letter: `headers` is no JSON object")
    for name, text in value.items():
        # Our own are part of the letter. The server's would make it do things: purge, expire, overwrite.
        ours = name.lower().startswith("jetjobs-")
        try:
            check_header(f"X-{name}" if ours else name, text)
        except DefinitionError as error:
            raise ValueError(f"no exported dead letter: {error}") from None
    if h.RUN in value and not is_id(value[h.RUN]):
        raise ValueError(f"no exported dead letter: {h.RUN} is not usable")
    return dict(value)


def _objects(value: Any, headers: Mapping[str, str]) -> dict[str, bytes]:
    if not isinstance(value, dict):
        raise ValueError("no exported dead letter: `objects` is no JSON object")
    wanted = objects_of(headers)
    if sorted(value) != sorted(set(wanted)):
        raise ValueError(f"no exported dead letter: it needs the objects {wanted}, and has {sorted(value)}")
    return {name: _bytes(f"object {name}", data) for name, data in value.items() if data is not None}


def _bytes(what: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"no exported dead letter: {what}: {error}") from None
