"""Check progress, and convert checkpoints to JSON and back to a type."""

from __future__ import annotations

from numbers import Real
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from jetjobs.model.errors import CheckpointError, DefinitionError, UnstorableValue
from jetjobs.model.wire.validation import has_wire_form

MAX_CHECKPOINT = 64 * 1024
"""Bytes of JSON. A checkpoint records how far the work is, not the work itself."""
MAX_MESSAGE = 500


def check_progress(fraction: Any, message: Any) -> float:
    """The fraction as a float. ValueError for an invalid fraction or message."""
    if isinstance(fraction, bool) or not isinstance(fraction, Real):
        raise ValueError(f"progress must be a number from 0 to 1, not {type(fraction).__qualname__}")
    number: Any = fraction  # all kinds of numbers compare, which mypy does not know
    if not 0 <= number <= 1:  # NaN too
        raise ValueError(f"progress must be from 0 to 1, not {number!r:.40}")
    value = float(number)
    if message is not None:
        if not isinstance(message, str):
            raise ValueError(f"the progress message must be text, not {type(message).__qualname__}")
        if not has_wire_form(message):
            raise ValueError("the progress message has an unpaired surrogate, which UTF-8 cannot encode")
        if len(message) > MAX_MESSAGE:
            raise ValueError(f"the progress message has {len(message):,} characters; the limit is {MAX_MESSAGE}")
    return value


def encode(value: Any) -> bytes:
    """A checkpoint as JSON. UnstorableValue if it has no JSON form or is too large."""
    try:
        # By field name: an alias may be valid for writing only.
        data = to_json(value, by_alias=False, inf_nan_mode="strings")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise UnstorableValue(
            f"a checkpoint of {type(value).__qualname__} cannot be written as JSON: {error}"
        ) from None
    if len(data) > MAX_CHECKPOINT:
        raise UnstorableValue(
            f"the checkpoint is {len(data):,} bytes as JSON; the limit is {MAX_CHECKPOINT:,}",
            hint="store the data elsewhere and keep a reference",
        )
    return data


def decode(data: bytes, kind: Any) -> Any:
    """A checkpoint as `kind`, a type or a TypeAdapter. CheckpointError if it does not fit."""
    adapter = kind if isinstance(kind, TypeAdapter) else _adapter(kind)
    try:
        # Written by field name, even if the type reads by alias.
        return adapter.validate_json(data, by_alias=True, by_name=True)
    except ValidationError as error:
        # Without inputs: they may be secret, and this text goes to logs and dead letters.
        details = error.errors(include_url=False, include_input=False, include_context=False)
        problems = [f"{'.'.join(map(str, d['loc']))}: {d['msg']}".removeprefix(": ") for d in details[:5]]
        text = "; ".join(problems)
    except Exception as error:  # a user's validator may raise anything
        text = f"a validator raised {type(error).__qualname__}"
    raise CheckpointError(
        f"the checkpoint does not fit {_name(kind)}: {text}",
        hint="give new fields a default, or catch CheckpointError and start over",
    )


def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind)
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise DefinitionError(f"a checkpoint cannot be read as {_name(kind)}: {reason}") from None


def _name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)
