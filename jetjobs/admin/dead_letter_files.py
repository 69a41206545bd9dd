"""Export dead letters to files of JSON lines and import them again."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.dead_letters import HEADER_LIMIT
from jetjobs.jetstream.messages.codec import header_size
from jetjobs.model.errors import DefinitionError, MalformedJob
from jetjobs.model.public import Record, public
from jetjobs.model.views.dead_letter import DeadLetter
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.headers import check_header
from jetjobs.model.wire.ids import is_id
from jetjobs.model.wire.lenient_json import read_json, write_json
from jetjobs.model.wire.subjects import DeadSubject
from jetjobs.model.wire.validation import check_token

_PUBLISH_HEADERS = 1024
"""Bytes reserved for the headers that the publish adds."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class ImportReport(Record):
    """The result of an import, by lines of the file."""

    imported: int
    already_there: int
    problems: tuple[tuple[int, str], ...]
    """For each line that cannot be imported: its number and the reason."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON, with the keys of the command line."""
        problems = [{"line": number, "why": why} for number, why in self.problems]
        return {"imported": self.imported, "already_there": self.already_there, "problems": problems}


class ParsedLine(NamedTuple):
    """A validated line of an exported file."""

    subject: DeadSubject
    headers: dict[str, str]
    body: bytes
    objects: dict[str, bytes]


async def to_json(jetstream: JetStreamClient, letter: DeadLetter) -> dict[str, Any]:
    """The complete letter as one JSON object. An object that is missing from the store is `null`."""
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
    """Restore an exported letter. False when it exists already; ValueError when it is not valid here."""
    line = parse(value, jetstream.names.namespace, jetstream.connection.max_payload)
    _, queue, task, job_id = line.subject
    if await jetstream.dead.get(queue, task, job_id) is not None:
        return False
    if line.objects and await jetstream.locator.find_live(queue, task, job_id) is not None:
        raise ValueError("a live job with this id may use the objects of this letter")
    labels = {"queue": queue, "task": task, "id": job_id, "run": line.headers.get(h.RUN, "")}
    for name, data in line.objects.items():
        await jetstream.payloads.put(name, data, labels)
    return await jetstream.dead.restore(jetstream.names.dead(queue, task, job_id), line.body, line.headers)


async def write_file(jetstream: JetStreamClient, file: IO[str], letter: DeadLetter) -> None:
    """Write one letter as one line."""
    file.write(write_json(await to_json(jetstream, letter)) + "\n")


async def read_file(jetstream: JetStreamClient, file: IO[str]) -> ImportReport:
    """Import each line on its own: an invalid one does not stop the others. Repeating it changes nothing."""
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
    """The names of the stored objects that a letter refers to."""
    return [headers[name] for name in (h.PAYLOAD, h.PAYLOAD_HEADERS) if headers.get(name)]


def parse(value: Any, namespace: str, max_payload: int) -> ParsedLine:
    """Validate every part of an exported letter: a file may come from anywhere."""
    if not isinstance(value, dict):
        raise ValueError("not an exported dead letter: not a JSON object")
    subject = _subject(value.get("subject"), namespace)
    headers = _headers(value.get("headers"))
    body = _bytes("body", value.get("body"))
    objects = _objects(value.get("objects", {}), headers)
    size = header_size(headers) + _PUBLISH_HEADERS
    if size > HEADER_LIMIT + _PUBLISH_HEADERS or size + len(body) > max_payload:
        raise ValueError(f"dead letter too large: {size + len(body):,} bytes; this server accepts {max_payload:,}")
    return ParsedLine(subject, headers, body, objects)


def _subject(value: Any, namespace: str) -> DeadSubject:
    try:
        subject = DeadSubject.parse(value if isinstance(value, str) else "")
        check_token("queue", subject.queue)
        valid = subject.namespace == namespace and is_id(subject.task) and is_id(subject.job_id)
    except (ValueError, DefinitionError):
        valid = False
    if not valid:
        raise ValueError(f"not the subject of a dead letter in namespace {namespace!r}: {value!r}")
    return subject


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("not an exported dead letter: `headers` must be a JSON object")
    for name, text in value.items():
        # Headers of jetjobs are part of the letter. Headers of the server are commands: purge, expire, overwrite.
        own = name.lower().startswith("jetjobs-")
        try:
            check_header(f"X-{name}" if own else name, text)
        except DefinitionError as error:
            raise ValueError(f"not an exported dead letter: {error}") from None
    if h.RUN in value and not is_id(value[h.RUN]):
        raise ValueError(f"not an exported dead letter: header {h.RUN} is invalid")
    return dict(value)


def _objects(value: Any, headers: Mapping[str, str]) -> dict[str, bytes]:
    if not isinstance(value, dict):
        raise ValueError("not an exported dead letter: `objects` must be a JSON object")
    wanted = objects_of(headers)
    if sorted(value) != sorted(set(wanted)):
        raise ValueError(f"not an exported dead letter: it needs the objects {wanted} and has {sorted(value)}")
    return {name: _bytes(f"object {name}", data) for name, data in value.items() if data is not None}


def _bytes(what: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"not an exported dead letter: {what}: {error}") from None
