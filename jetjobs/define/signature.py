"""The signature of a task: check, encode and decode its arguments."""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, NotRequired, cast, get_args, get_origin

from pydantic import (
    AwareDatetime,
    ConfigDict,
    FutureDatetime,
    PastDatetime,
    PydanticUserError,
    ValidationError,
)
from pydantic_core import PydanticSerializationError, SchemaSerializer
from pydantic_core.core_schema import CoreConfig
from typing_extensions import TypedDict

from jetjobs.define.dependencies import INJECTED, Dependency, Depends, dependency_of, is_context
from jetjobs.define.result_type import AS_JSON, ResultType, check_failed, make_adapter, with_aliases
from jetjobs.define.secret import revealing_serializer, secret_paths, without_values
from jetjobs.model.errors import (
    DefinitionError,
    DeliveryError,
    InvalidArguments,
    MalformedJob,
)
from jetjobs.model.views.task_info import MAX_SCHEMA

_CONFIG = ConfigDict(extra="forbid", **AS_JSON)
_AS_JSON = cast("CoreConfig", AS_JSON)  # both have these keys

# Signs of a number that JSON may have changed.
_SUSPICIOUS = re.compile(rb"null|NaN|Infinity|\d{4000}")
_SAFE = frozenset({"missing", "extra_forbidden"})
# Messages of pydantic that repeat the input.
_UNSAFE = {"union_tag_invalid": "Input tag is not one of the expected tags"}


class Signature:
    """Converts the arguments of a task to a JSON object and back. `result` does so for its result."""

    def __init__(self, task: str, function: Callable[..., Any], *, partial: bool = False) -> None:
        self.task = task
        self._function = function
        self.parameters = _parameters(task, function)
        hints = _hints(task, function)
        self.dependencies: dict[str, Dependency] = {}
        contexts: list[str] = []
        fields: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if parameter.default is Depends:
                raise DefinitionError(f"task {task!r}: argument {name!r}: write Depends(factory), not Depends")
            if name not in hints:
                raise DefinitionError(
                    f"task {task!r}: argument {name!r} has no type annotation",
                    hint=f"{name}: Type = Depends(factory)" if _is_marker(parameter.default) else None,
                )
            if (dependency := dependency_of(hints[name], parameter.default)) is not None:
                self.dependencies[name] = dependency
            elif is_context(hints[name]):
                contexts.append(name)
            else:
                check_failed(task, name, hints[name])
                given = _required(parameter) and not partial
                fields[name] = hints[name] if given else NotRequired[hints[name]]
        self.names = tuple(fields)
        self.required = tuple(name for name in fields if _required(self.parameters[name]))
        self.contexts = tuple(contexts)
        """The arguments of type Context, which get the context of the attempt."""
        self.injected = frozenset((*self.dependencies, *contexts))
        """The arguments that the worker fills in."""
        self.markers = frozenset(name for name in self.injected if _is_marker(self.parameters[name].default))
        """Those whose default value stands for the injected object and must not reach the function."""
        self.takes_scheduled_time = "scheduled_time" in fields and _is_time(hints["scheduled_time"])
        """Whether a schedule fills in the argument `scheduled_time`."""
        self.positional = [
            name for name in fields if self.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        self._arguments = make_adapter(task, "arguments", _typed_dict(task, fields), None)
        self.result = ResultType(task, hints.get("return", Any))
        # For speed, the calls of every job go straight to pydantic-core.
        self._validate = with_aliases(self._arguments, self._arguments.validator.validate_python)
        self._validate_json = with_aliases(self._arguments, self._arguments.validator.validate_json)
        self._loose = "'type': 'any'" in str(self._arguments.core_schema)
        """Whether an argument has type Any, so that each value must be checked for a JSON form."""
        self.secrets = secret_paths(self._arguments.core_schema)
        """The paths of the secrets in the arguments."""
        # The configuration of a TypedDict reaches only the validator, so the serializer gets it explicitly.
        make = revealing_serializer if self.secrets else SchemaSerializer
        self._to_json = make(self._arguments.core_schema, _AS_JSON).to_json

    @functools.cached_property
    def partial(self) -> Signature:
        """The same signature, but each argument may be missing."""
        return Signature(self.task, self._function, partial=True)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the JSON schema of the arguments, to detect workers with different versions of a task. Empty if
        a type has no JSON schema.
        """
        try:
            schema = self._arguments.json_schema()
        except PydanticUserError:
            return ""
        return hashlib.sha256(json.dumps(schema, sort_keys=True, default=str).encode()).hexdigest()[:12]

    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the arguments for people and tools, without values of secrets. None if a type has no
        JSON schema, or if it is too long to be published.
        """
        try:
            schema = self._arguments.json_schema()
        except PydanticUserError:
            return None
        text = json.dumps(without_values(schema) if self.secrets else schema, default=str)
        return json.loads(text) if len(text) <= MAX_SCHEMA else None

    def text(self) -> str:
        """Name, arguments and result as people write them, without metadata of types and values of defaults."""
        hints = typing.get_type_hints(self._function)
        arguments = []
        for name in self.names:
            kind = "Secret" if (name,) in self.secrets else _kind(hints[name])  # a Literal contains its values
            arguments.append(f"{name}: {kind}" + ("" if _required(self.parameters[name]) else " = ..."))
        result = f" -> {_kind(hints['return'])}" if "return" in hints else ""
        return f"{self.task}({', '.join(arguments)}){result}"

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, checked against their types. InvalidArguments names each invalid one."""
        if self.injected and (injected := sorted(self.injected & kwargs.keys())):
            raise InvalidArguments(
                f"task {self.task!r}: {', '.join(injected)} is injected by the worker and cannot be passed",
                task=self.task,
                problems=[(name, "injected") for name in injected],
            )
        if args:
            kwargs = self.by_name(args, kwargs)
        try:
            return typing.cast("dict[str, Any]", self._validate(kwargs))
        except Exception as error:  # a user's validator may raise anything
            raise self._invalid(error) from None

    def by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, unchecked. InvalidArguments for too many arguments or one given twice."""
        positional = self.positional
        if len(args) > len(positional):
            problem = f"takes {len(positional)} positional arguments, got {len(args)}"
            invalid = InvalidArguments(f"task {self.task!r} {problem}", task=self.task, problems=[("", problem)])
            invalid.hint = f"the task is {self._shown()}"
            raise invalid
        named = dict(zip(positional, args, strict=False))
        if not kwargs:
            return named
        if twice := named.keys() & kwargs.keys():
            problems = [(name, "given twice") for name in sorted(twice)]
            raise InvalidArguments(
                f"task {self.task!r}: {', '.join(sorted(twice))} given twice", task=self.task, problems=problems
            )
        return {**named, **kwargs}

    def encode(self, arguments: dict[str, Any]) -> bytes:
        """The body of a job. InvalidArguments names arguments that have no JSON form."""
        try:
            body = self._to_json(arguments, warnings="error")
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            raise self._unwritable(
                [n for n in arguments if not self._writes(arguments, n)], _reason(error)
            ) from None
        if self._loose or _SUSPICIOUS.search(body):
            self._check_whole(arguments, body)
        return body

    def decode(self, body: bytes) -> dict[str, Any]:
        """The arguments in `body`. MalformedJob if it is not a JSON object, InvalidArguments if one is invalid."""
        try:
            return typing.cast("dict[str, Any]", self._validate_json(body))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            if first["type"] in ("json_invalid", "dict_type") and not first["loc"]:
                raise MalformedJob(f"the body is not a JSON object: {first['msg']}") from None
            raise self._invalid(error) from None
        except Exception as error:
            raise self._invalid(error) from None

    def _check_whole(self, arguments: dict[str, Any], body: bytes) -> None:
        """Reject what JSON would silently change: NaN and bytes of unknown type, and huge integers."""
        try:
            there = self.decode(body)
        except DeliveryError:
            there = {}
        changed = [n for n in arguments if n not in there or _fragile(arguments[n]) != _fragile(there[n])]
        if changed:
            raise self._unwritable(changed, "its value would change")

    def _writes(self, arguments: dict[str, Any], name: str) -> bool:
        try:
            self._to_json(arguments, include={name}, warnings="error")
        except (PydanticSerializationError, ValueError, RecursionError):
            return False
        return True

    def _unwritable(self, names: list[str], reason: str) -> InvalidArguments:
        shown = ", ".join(map(repr, names)) or "an argument"
        return InvalidArguments(
            f"task {self.task!r}: {shown} cannot be written as JSON: {reason}",
            task=self.task,
            problems=[(name, reason) for name in names] or [("", reason)],
        )

    def _message(self, problem: Any) -> str:
        """The message of pydantic, unless it may contain a secret: messages of validators often do."""
        kind, argument = str(problem["type"]), problem["loc"][:1]
        if len(problem["loc"]) == 1 and kind in _SAFE:
            return (
                "is missing" if kind == "missing" else f"is not an argument of the task{self._meant(argument[0])}"
            )
        if kind not in _SAFE and any(not argument or path[:1] == argument for path in self.secrets):
            return f"invalid ({kind})"
        return _UNSAFE.get(kind) or str(problem["msg"])

    def _invalid(self, error: Exception) -> InvalidArguments:
        # Without inputs: they may be secret, and this text goes to logs and dead letters.
        if isinstance(error, ValidationError):
            details = error.errors(include_url=False, include_input=False, include_context=False)
            problems = [(".".join(map(str, d["loc"])), self._message(d)) for d in details]
        else:
            problems = [("", f"a validator raised {type(error).__qualname__}")]
        return self.invalid(problems)

    def invalid(self, problems: list[tuple[str, str]]) -> InvalidArguments:
        """An error with pairs of argument and problem."""
        text = "; ".join(f"{name}: {message}" if name else message for name, message in problems[:5])
        if len(problems) > 5:
            text += f"; and {len(problems) - 5} more"
        invalid = InvalidArguments(f"task {self.task!r}: {text}", task=self.task, problems=problems)
        invalid.hint = f"the task is {self._shown()}"
        return invalid

    def _meant(self, name: object) -> str:
        close = difflib.get_close_matches(str(name), self.names, 1)
        return f"; did you mean {close[0]!r}?" if close else ""

    def _shown(self) -> str:
        """Name and arguments of the task as people write them, without values of defaults."""
        shown = [self.parameters[name] for name in self.names]
        return f"{self.task}({', '.join(_written(parameter) for parameter in shown)})"


def _written(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    kind = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return f"{parameter.name}: {kind}" + ("" if _required(parameter) else " = ...")


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _kind(hint: Any) -> str:
    """A type as people write it. An address in it would differ between processes."""
    return "None" if hint is type(None) else re.sub(r" at 0x[0-9a-f]+", "", inspect.formatannotation(hint))


def _parameters(task: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(function).parameters)
    for parameter in parameters.values():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise DefinitionError(
                f"task {task!r}: {parameter} is not supported",
                hint="arguments are stored by name: list them, or take one dict or model",
            )
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise DefinitionError(
                f"task {task!r}: argument {parameter.name!r} is positional-only, but arguments are stored by name"
            )
    return parameters


def _hints(task: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise DefinitionError(
            f"task {task!r}: an annotation cannot be resolved: {error}",
            hint="names in annotations must be defined in the module, not inside a function",
        ) from error


def _is_time(hint: Any) -> bool:
    """Whether the type accepts a datetime: datetime, one of pydantic's variants, or a union with one."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_time(get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return any(map(_is_time, get_args(hint)))
    return hint in (datetime, AwareDatetime, FutureDatetime, PastDatetime)


def _is_marker(default: Any) -> bool:
    return default is INJECTED or isinstance(default, Dependency)


def _typed_dict(task: str, fields: dict[str, Any]) -> Any:
    made = TypedDict(f"{task}_arguments", fields)  # type: ignore[misc]
    made.__pydantic_config__ = _CONFIG  # type: ignore[attr-defined]
    return made


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return "a value is not of its declared type" if "input_value=" in text else text


def _fragile(value: Any) -> int:
    """How many values without a native JSON form are in it: bytes, NaN, infinity."""
    if isinstance(value, float):
        return 0 if math.isfinite(value) else 1
    if isinstance(value, bytes | bytearray):
        return 1
    if isinstance(value, Mapping):
        return sum(map(_fragile, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return sum(map(_fragile, value))
    return _fragile(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, type) else 0
