"""The result of a task: encode and decode it, and compare it with the return annotation."""

from __future__ import annotations

import functools
import inspect
import logging
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError

from jetjobs.define.secret import secret_paths
from jetjobs.model.errors import AttemptError, DefinitionError, UnstorableValue
from jetjobs.model.flow.failed import Failed
from jetjobs.model.outcome import Signal

# NaN and bytes have no native JSON form. With these settings they survive a round trip.
AS_JSON = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64")
CHECKED_FIRST, CHECKED_EVERY = 100, 1_000
"""Which results are compared with the annotation: the first ones of a process, then one of so many."""
MAX_CHECKED = 64 * 1024
"""Bytes of a result that is compared."""

_A_FAILURE = '{"job_id": "", "reason": "", "error": ""}'
_log = logging.getLogger("jetjobs.worker")


class Known(NamedTuple):
    """A result that is known."""

    value: Any


class Returnable:
    """Base of `Flow`: what a task can return in place of its result."""

    _known: Known | None = None
    """The result, where nothing has to run for it."""

    def as_result(self) -> bytes:
        """The form in which it is stored. DefinitionError if it cannot take the place of a result."""
        raise NotImplementedError


class ResultType:
    """Converts the result of a task to JSON and back."""

    def __init__(self, task: str, hint: Any) -> None:
        self._task = task
        hint, self.flows = _without_flows(hint)
        """Whether the annotation names a flow. The result is then that of the flow."""
        self._adapter = make_adapter(task, "result", hint, _config(hint))
        # For speed, the calls of every job go straight to pydantic-core.
        self.decode = with_aliases(self._adapter, self._adapter.validator.validate_json)
        self._to_json = self._adapter.serializer.to_json
        self.secrets = secret_paths(self._adapter.core_schema)
        """The paths of the secrets in the result."""
        self._encoded = 0
        self._mismatched = False

    def encode(self, value: Any) -> bytes:
        """The result as JSON. UnstorableValue if it has no JSON form, AttemptError if it was not awaited. A result
        that does not fit the annotation is logged once. A flow is written in a form of its own, which is not JSON.
        """
        if self.flows and isinstance(value, Returnable):
            return self._flow(value)
        try:
            data = self._to_json(value, warnings=False)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            self.check_awaited(value)
            if isinstance(value, Returnable):
                return self._flow(value)
            if isinstance(value, Signal):
                name = type(value).__name__
                raise UnstorableValue(f"task {self._task!r} returned {name}: raise it, do not return it") from None
            kind = type(value).__qualname__
            raise UnstorableValue(
                f"task {self._task!r} returned {kind}, which cannot be written as JSON: {error}"
            ) from None
        self._encoded += 1
        if self._encoded <= CHECKED_FIRST or not self._encoded % CHECKED_EVERY:
            self._compare(value, data)
        return data

    def _flow(self, value: Returnable) -> bytes:
        if value._known is not None:
            return self.encode(value._known.value)
        try:
            return value.as_result()
        except DefinitionError as error:
            raise UnstorableValue(
                f"task {self._task!r} returned a flow that cannot run: {error}", hint=error.hint
            ) from None

    def check_awaited(self, value: Any) -> None:
        """AttemptError if the task returned a coroutine, a future or another awaitable object."""
        if value is not None and inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            kind = type(value).__qualname__
            raise AttemptError(f"task {self._task!r} returned a {kind}: did you forget await?") from None

    def _compare(self, value: Any, data: bytes) -> None:
        if self._mismatched or len(data) > MAX_CHECKED:
            return
        problem = self._problem(value, data)
        if problem:
            self._mismatched = True
            extra = {"event": "job.result_mismatch", "task": self._task, "error": problem}
            _log.warning("a result does not fit the return annotation of its task", extra=extra)

    def _problem(self, value: Any, data: bytes) -> str:
        """Why a result does not fit the annotation; empty if it does. `data` is its JSON, as a caller reads it."""
        try:
            self.decode(data)
        except ValidationError as error:
            # Without inputs, as below; the message of a validator may repeat the input too.
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(map(str, first["loc"]))
            problem = f"invalid ({first['type']})" if self.secrets else first["msg"]
            return f"{place}: {problem}" if place else problem
        except Exception as error:
            return f"a validator raised {type(error).__qualname__}"
        try:
            # Strict where reading is lenient: "7" can be read as a number.
            self._to_json(value, warnings="error")
        except PydanticSerializationError:
            return f"{type(value).__qualname__}: a value is not of its declared type"
        return ""


def returns_flow(function: Callable[..., Any]) -> bool:
    """Whether the return annotation of a function is a flow."""
    try:
        return _without_flows(typing.get_type_hints(function).get("return"))[1]
    except (NameError, TypeError):
        return False  # Signature reports it


def _without_flows(hint: Any) -> tuple[Any, bool]:
    """The type of the result behind an annotation: `Flow[str]` and `Flow[str] | str` both give `str`."""
    origin = typing.get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, Returnable):
        return (*typing.get_args(hint), Any)[0], True
    if origin in (typing.Union, types.UnionType):
        members = [_without_flows(member) for member in typing.get_args(hint)]
        if any(flows for _, flows in members):
            return typing.Union[tuple(member for member, _ in members)], True  # noqa: UP007
    return hint, False


def make_adapter(task: str, what: str, hint: Any, config: ConfigDict | None) -> TypeAdapter[Any]:
    """The adapter of pydantic for a type. DefinitionError if pydantic does not support it."""
    try:
        return TypeAdapter(hint, config=config)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).splitlines()[0]
        raise DefinitionError(
            f"task {task!r}: unsupported type of the {what}: {reason}",
            hint="use types that pydantic supports, or inject the object with `= Depends(factory)`",
        ) from None


def check_failed(task: str, name: str, hint: Any) -> None:
    """DefinitionError if a type beside `Failed` would take the failure of a step for one of its own values."""
    members = typing.get_args(hint)
    for member in members:
        check_failed(task, name, member)
    if Failed in members and typing.get_origin(hint) in (typing.Union, types.UnionType):
        try:
            found = TypeAdapter(hint).validate_json(_A_FAILURE)
        except (PydanticSchemaGenerationError, PydanticUserError):
            return  # reported for the argument as a whole
        if not isinstance(found, Failed):
            raise DefinitionError(
                f"task {task!r}: argument {name!r} would take a Failed for {type(found).__name__}",
                hint="write Failed before the other types, such as Failed | dict[str, Any]",
            )


def with_aliases(adapter: TypeAdapter[Any], validate: Callable[..., Any]) -> Callable[..., Any]:
    """Accept fields by name and by alias: jetjobs writes names, other producers may write aliases. Without aliases
    this costs nothing.
    """
    aliased = "'validation_alias'" in str(adapter.core_schema)
    return functools.partial(validate, by_alias=True, by_name=True) if aliased else validate


def _config(hint: Any) -> ConfigDict | None:
    # A model, dataclass or TypedDict has its own configuration; pydantic rejects a second one.
    has_own = isinstance(hint, type) and (
        hasattr(hint, "__pydantic_validator__")
        or hasattr(hint, "__dataclass_fields__")
        or hasattr(hint, "__total__")
    )
    return None if has_own else AS_JSON
