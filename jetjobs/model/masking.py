"""Secret fields, for whoever shows arguments: a header of the job names them, and they are masked by it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import read_json

MASK = "***"
MAX_HEADER = 2_000
_PLAIN = re.compile(r"[\w$@:/-]+")
"""Aliases are more than identifiers; neither comma nor dot may be in a name, nor what a header cannot hold."""
_RESULT = "result"
Path = tuple[str, ...]
"""Names from the outermost argument inward; `*` stands for each item of a list or value of a dict."""


def write_paths(paths: Collection[Path]) -> str:
    """The header's value: `password,users.*.token`. Where that cannot be written, what is around it is secret too.

    >>> write_paths([("password",), ("users", "*", "token")])
    'password,users.*.token'
    """
    plain = {_writable(path) for path in paths}
    text = ",".join(sorted(".".join(path) for path in plain))
    return text if len(text) <= MAX_HEADER else ",".join(sorted({path[0] for path in plain}))


def _writable(path: Path) -> Path:
    for index, token in enumerate(path):
        if token != "*" and not _PLAIN.fullmatch(token):
            return path[:index] or ("*",)
    return path


def read_paths(text: str) -> list[Path]:
    return [tuple(path.split(".")) for path in text.split(",") if path]


def write_result_paths(paths: Collection[Path]) -> str:
    """What a done record says of its result: `result.token`, or `result` when all of it is secret."""
    return write_paths([(_RESULT, *path) for path in paths])


def mask_result(result: Any, text: Any) -> Any:
    """A copy of a result without its secrets, by what its record says of them.

    >>> mask_result({"user": "ada", "token": "x"}, "result.token"), mask_result("x", "result")
    ({'user': 'ada', 'token': '***'}, '***')
    """
    return mask({_RESULT: result}, read_paths(text))[_RESULT] if isinstance(text, str) and text else result


def mask(value: Any, paths: Iterable[Path]) -> Any:
    """A copy of a JSON value without its secrets. Where it has not the form that a path speaks of, more is masked.

    >>> mask({"user": {"name": "Ada", "token": "x"}, "n": 1}, [("user", "token")])
    {'user': {'name': 'Ada', 'token': '***'}, 'n': 1}
    """
    for path in paths:
        value = _mask(value, path)
    return value


def _mask(value: Any, path: Path) -> Any:
    if value is None:
        return None
    if not path:
        return MASK
    first, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {k: _mask(v, rest) if first in (k, "*") else v for k, v in value.items()}
    if isinstance(value, list) and first == "*":
        return [_mask(item, rest) for item in value]
    return MASK


def shown_arguments(body: bytes, headers: Mapping[str, str]) -> Any:
    """A job's arguments for people and lists: JSON with its secrets masked."""
    if payload := headers.get(h.PAYLOAD):
        return f"<in the object store: {payload}>"
    try:
        value = read_json(body)
    except ValueError:
        return f"<{len(body)} bytes that are no JSON>"
    return mask(value, read_paths(headers.get(h.SECRET, "")))


def covers_secret(place: Sequence[str], paths: Iterable[Path]) -> bool:
    """Whether one of the secrets is at that place, around it or in it.

    >>> covers_secret(["user"], [("user", "token")]), covers_secret(["user", "name"], [("user", "token")])
    (True, False)
    """
    return any(all(a in (b, "*") for a, b in zip(path, place, strict=False)) for path in paths)
