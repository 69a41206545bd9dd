"""Mask secrets in arguments and results. A header of the job lists their paths."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import read_json

MASK = "***"
MAX_HEADER = 2_000
_PLAIN = re.compile(r"[\w$@:/-]+")
"""Aliases need not be identifiers, but contain no comma, no dot and nothing that a header cannot contain."""
_RESULT = "result"
Path = tuple[str, ...]
"""Names from the argument inward; `*` matches each item of a list and each value of a dict."""


def write_paths(paths: Collection[Path]) -> str:
    """The value of the header. If a path cannot be written, the value that contains it is secret.

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
    """The secret paths in a done record: `result.token`, or `result` if all of it is secret."""
    return write_paths([(_RESULT, *path) for path in paths])


def mask_result(result: Any, text: Any) -> Any:
    """A copy of a result with the secrets masked that its record lists.

    >>> mask_result({"user": "ada", "token": "x"}, "result.token"), mask_result("x", "result")
    ({'user': 'ada', 'token': '***'}, '***')
    """
    return mask({_RESULT: result}, read_paths(text))[_RESULT] if isinstance(text, str) and text else result


def mask(value: Any, paths: Iterable[Path]) -> Any:
    """A copy of a JSON value with its secrets masked. Where a path does not fit the value, more is masked.

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
    """The arguments of a job as JSON, with secrets masked."""
    if payload := headers.get(h.PAYLOAD):
        return f"<in the object store: {payload}>"
    try:
        value = read_json(body)
    except ValueError:
        return f"<{len(body)} bytes that are not JSON>"
    return mask(value, read_paths(headers.get(h.SECRET, "")))


def covers_secret(place: Sequence[str], paths: Iterable[Path]) -> bool:
    """Whether a secret is at that place, contains it or is contained in it.

    >>> covers_secret(["user"], [("user", "token")]), covers_secret(["user", "name"], [("user", "token")])
    (True, False)
    """
    return any(all(a in (b, "*") for a, b in zip(path, place, strict=False)) for path in paths)
