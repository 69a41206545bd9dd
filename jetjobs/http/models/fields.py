"""Types of fields in requests: names, durations, reasons, and the base of all bodies and queries."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from jetjobs.model.durations import parse_duration
from jetjobs.model.views.dead_letter import MAX_NOTE


def _true_or_false(value: Any) -> Any:
    """Only these two words: pydantic takes `yes`, `1` and others too."""
    return {"true": True, "false": False}.get(value, "invalid") if isinstance(value, str) else value


def _duration(value: Any) -> timedelta:
    if isinstance(value, str) and re.search(_DURATION, value, re.ASCII) and not value.endswith("\n"):
        return parse_duration(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_SECONDS:
        return timedelta(seconds=value)
    raise PydanticCustomError("duration", "use text such as 10s, 5m, 1h30m, or a number of seconds")


def _positive(value: timedelta | None) -> timedelta | None:
    if value is not None and value < timedelta(milliseconds=1):
        raise PydanticCustomError("positive", "use at least a millisecond")
    return value


def _duration_text(text: str) -> str:
    _duration(text)
    return text


def whole_number(value: Any) -> Any:
    """Only digits: pydantic takes `1.0` and ` 1 ` too."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) < 20):
        raise PydanticCustomError("whole_number", "use a whole number")
    return value


Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
_DURATION = (
    r"^(?=[0-9])([0-9]{1,3}d)?([0-9]{1,4}h)?([0-9]{1,5}m)?([0-9]{1,8}(\.[0-9]{1,3})?s)?([0-9]{1,9}ms)?$"
    r"|^[0-9]{1,8}(\.[0-9]{1,3})?$"
)
_WAIT = r"^([0-9]|[1-5][0-9]|60)s?$|^[0-9]{1,4}ms$|^1m$"
MAX_SECONDS = 300_000_000
"""Nine and a half years: as much as a queue may be paused."""
DurationText = Annotated[
    str,
    AfterValidator(_duration_text),
    WithJsonSchema({"type": "string", "pattern": _DURATION, "examples": ["10s", "1h30m"]}),
]


def _span_schema(*ways: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [*ways, {"type": "null"}], "examples": ["10s", 30]})


Span = Annotated[
    Any,
    AfterValidator(lambda value: None if value is None else _duration(value)),
    _span_schema(
        {"type": "string", "pattern": _DURATION}, {"type": "number", "minimum": 0, "maximum": MAX_SECONDS}
    ),
]
"""A duration in a body: text, or a number of seconds."""
PositiveSpan = Annotated[
    Span,
    AfterValidator(_positive),
    _span_schema(
        {"type": "string", "allOf": [{"pattern": _DURATION}, {"pattern": "[1-9]"}]},
        {"type": "number", "minimum": 0.001, "maximum": MAX_SECONDS},
    ),
]
Reason = Annotated[str, Field(max_length=MAX_NOTE, description="Why, in your words; recorded and shown.")]
Priority = Literal["high", "normal", "low"]
Flag = Annotated[bool, BeforeValidator(_true_or_false)]
Count = Annotated[int, Field(ge=1, le=1_000), BeforeValidator(whole_number)]
Pair = Annotated[str, Field(pattern=r"^args\.[^.=]+(\.[^.=]+)*=", max_length=1_000, examples=["args.user_id=7"])]
Cursor = Annotated[str, Field(max_length=500, description="Continue from here, as the previous page says.")]
Wait = Annotated[
    str,
    Field(pattern=_WAIT, description="Wait this long for the end of the job, at most 60s.", examples=["10s"]),
]


def given(*names: str) -> dict[str, Any]:
    """A schema that demands these members, and not null."""
    return {"required": list(names), "properties": {name: {"not": {"type": "null"}} for name in names}}


class Body(BaseModel):
    """A JSON object without unknown members."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    """The parameters of a URL, without unknown ones."""

    model_config = ConfigDict(extra="forbid")


def since(text: str | None) -> datetime | None:
    """The time at which a period that ends now begins."""
    return None if text is None else datetime.now(UTC) - parse_duration(text)
