"""Read the body and the query of a request: bounded in size and time, and checked against their models."""

from __future__ import annotations

import asyncio
import contextlib
import typing
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.types import Receive

from jetjobs.http.problems import Problem, invalid_fields

M = TypeVar("M", bound=BaseModel)
_DISCARD_S = 1.0
_DISCARD_BYTES = 16 * 2**20


async def read_bytes(receive: Receive, limit: int, timeout_s: float) -> bytes:
    """The body. Problem 413 if it is larger than `limit`, 408 if it does not come in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(receive, limit)
    except TimeoutError:
        text = f"the body has not come within {timeout_s:g} s"
        close = {"Connection": "close"}
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, "body_timeout", text, headers=close) from None


async def _read(receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(HTTPStatus.BAD_REQUEST, "incomplete_body", "the client disconnected")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            if message.get("more_body", False):
                await _discard(receive)
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "body_too_large",
                f"the body is larger than {limit:,} bytes",
                hint="store the data elsewhere and pass a reference, or raise http.max_body",
                headers={"Connection": "close"},
            )
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _discard(receive: Receive) -> None:
    """Read on for a short time: a client that still sends when it is disconnected does not get the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            left = _DISCARD_BYTES
            while left > 0 and (message := await receive()).get("more_body", False):
                left -= len(message.get("body", b""))


def read_body(model: type[M], data: bytes, headers: Mapping[str, str]) -> M:
    """The body. Problem 415 for another media type, 400 for malformed JSON, 422 for a body that does not fit."""
    if data:
        _check_media_type(headers)
    try:
        if b"NaN" in data or b"Infinity" in data:  # pydantic reads them as numbers, JSON does not have them
            from_json(data, allow_inf_nan=False)
        return model.model_validate_json(data or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        if first["type"] == "json_invalid":
            raise Problem(HTTPStatus.BAD_REQUEST, "malformed_json", str(first["msg"])) from None
        raise invalid_fields(error, "body") from None
    except ValueError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, "malformed_json", f"Invalid JSON: {error}") from None


def read_query(model: type[M], text: bytes) -> M:
    """The parameters of the URL. Problem 422 for invalid, unknown and repeated ones."""
    values: dict[str, Any] = {}
    try:
        for name, value in parse_qsl(
            text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50
        ):
            if name in _lists(model):
                values.setdefault(name, []).append(value)
            elif name in values:
                errors = [{"field": name, "message": "given twice"}]
                text_ = f"invalid query: {name[:40]!r} is given twice"
                raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_query", text_, errors=errors)
            else:
                values[name] = value
        return model.model_validate(values)
    except ValidationError as error:
        raise invalid_fields(error, "query") from None
    except ValueError:
        raise Problem(
            HTTPStatus.BAD_REQUEST, "malformed_query", "the query is not UTF-8, or is too long"
        ) from None


def _lists(model: type[BaseModel]) -> set[str]:
    return {name for name, field in model.model_fields.items() if typing.get_origin(field.annotation) is list}


def _check_media_type(headers: Mapping[str, str]) -> None:
    """Problem 415 unless the body is plain JSON."""
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json" or headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "the body must be application/json, not compressed",
            hint="send `Content-Type: application/json`",
            headers={"Accept": "application/json"},
        )
