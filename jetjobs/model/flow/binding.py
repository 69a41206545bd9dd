"""Put results into the arguments of a gate, and make the jobs of a map."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from jetjobs.model.errors import MalformedJob
from jetjobs.model.flow.entries import Completed
from jetjobs.model.flow.steps import After, FlowHeaders, Position, Source, pointer_tokens
from jetjobs.model.masking import Path, read_paths, write_paths
from jetjobs.model.wire.lenient_json import read_json


class Bound(NamedTuple):
    """The arguments of a gate with all results in them."""

    body: bytes
    secret: str
    """The value of `Jetjobs-Secret`: the secrets of the task and those in the results."""


class MapJob(NamedTuple):
    """One job of a map."""

    uid: str
    headers: FlowHeaders
    body: bytes


class Expanded(NamedTuple):
    """The jobs of a map, in the order of the items."""

    jobs: list[MapJob]
    secret: str
    """The value of `Jetjobs-Secret` of each of them."""


def bind(body: bytes, secret: str, after: After, completed: Mapping[str, Completed]) -> Bound:
    """The arguments of a gate with the results of its nodes. `completed` has each node that the gate needs, with
    results from the object store in place. MalformedJob if a result has no place in the arguments.
    """
    arguments, found = _bound(body, after, completed)
    return Bound(_written(arguments), _secret(secret, found))


def expand(
    headers: FlowHeaders, uid: str, body: bytes, secret: str, completed: Mapping[str, Completed]
) -> Expanded:
    """The jobs of a map with gate `uid`. MalformedJob if the value to map over is not a list."""
    assert headers.map is not None
    arguments, found = _bound(body, headers.after or After({}), completed)
    tokens = pointer_tokens(headers.map)
    container, last, path = _place(arguments, tokens)
    items = container[last]
    if not isinstance(items, list):
        kind = "null" if items is None else type(items).__name__
        raise MalformedJob(
            f"{headers.step.node} maps over {headers.map}, which is not a list but {kind}",
            hint="the task before it must return a list",
        )
    jobs = []
    for index, item in enumerate(items):
        container[last] = item
        position = Position(headers.step.node, index, len(items))
        own = replace(headers, step=position, after=None, map=None)
        jobs.append(MapJob(f"{uid}-{index}", own, _written(arguments)))
    # A secret in an item of the list is now one in the item itself.
    each = (*path, "*")
    inside = {(*path, *one[len(each) :]) if one[: len(each)] == each else one for one in found}
    return Expanded(jobs, _secret(secret, inside))


def _bound(body: bytes, after: After, completed: Mapping[str, Completed]) -> tuple[dict[str, Any], set[Path]]:
    """The arguments, and the paths of secrets in the results."""
    try:
        arguments = read_json(body)
    except ValueError as error:
        raise MalformedJob(f"the body is not a JSON object: {error}") from None
    if not isinstance(arguments, dict):
        raise MalformedJob("the body is not a JSON object")
    secrets: set[Path] = set()
    for pointer, source in after.values.items():
        node = completed[source.node]
        container, last, path = _place(arguments, pointer_tokens(pointer))
        container[last] = _value(source, node)
        prefix = (*path, "*") if source.many else path
        for text in {entry.secret for entry in node.entries}:
            secrets.update((*prefix, *inner[1:]) for inner in read_paths(text))
    return arguments, secrets


def _value(source: Source, node: Completed) -> Any:
    if source.many:
        return node.results
    if len(node.entries) != 1:
        raise MalformedJob(f"node {node.node!r} has {len(node.entries)} results where one is needed")
    return node.entries[0].result


def _place(arguments: dict[str, Any], tokens: list[str]) -> tuple[Any, Any, Path]:
    """The container and key of a value, and its path for masking."""
    container: Any = arguments
    path: list[str] = []
    for depth, token in enumerate(tokens, 1):
        key: Any = token
        if isinstance(container, list):
            key = int(token) if token.isascii() and token.isdigit() and len(token) < 9 else -1
            fits = 0 <= key < len(container)
            path.append("*")
        else:
            fits = isinstance(container, dict) and (depth == len(tokens) or token in container)
            path.append(token)
        if not fits:
            raise MalformedJob(f"the arguments have no place /{'/'.join(tokens)} for a result")
        if depth < len(tokens):
            container = container[key]
    return container, key, tuple(path)


def _secret(secret: str, found: Iterable[Path]) -> str:
    added = [*found]
    return write_paths([*read_paths(secret), *added]) if added else secret


def _written(arguments: dict[str, Any]) -> bytes:
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which only an escape can express
        return json.dumps(arguments, separators=(",", ":")).encode()
