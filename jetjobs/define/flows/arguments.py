"""The arguments of a step: those that are known are checked, results of other steps are left open."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from jetjobs.define.flows.placeholder import Placeholder, node_of
from jetjobs.define.signature import Signature
from jetjobs.model.errors import DefinitionError, InvalidArguments
from jetjobs.model.flow.steps import write_pointer
from jetjobs.model.wire.validation import has_wire_form


class StepArguments(NamedTuple):
    """The body of a step's job, with null where the results of other steps belong."""

    body: bytes
    open: dict[str, Placeholder]
    """Whose result belongs where, by JSON pointer."""


def encode_arguments(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> StepArguments:
    """Check the arguments and encode them. InvalidArguments if they do not fit the signature; values of arguments
    with results of other steps are checked when the job is run.
    """
    named = signature.by_name(args, kwargs)
    try:
        waiting = {name: value for name, value in named.items() if holds_placeholder(value)}
    except RecursionError:
        raise signature.invalid([("", "the arguments are nested too deeply, or contain themselves")]) from None
    if not waiting:
        return StepArguments(signature.encode(signature.bind((), named)), {})
    if unknown := [name for name in waiting if name not in signature.names]:
        raise signature.invalid([(name, "is not an argument of the task") for name in unknown])
    if missing := [name for name in signature.required if name not in named]:
        raise signature.invalid([(name, "is missing") for name in missing])
    partial = signature.partial
    known = partial.encode(partial.bind((), {name: named[name] for name in named.keys() - waiting.keys()}))
    found: dict[str, Placeholder] = {}
    left_open = {name: _skeleton(signature, value, [name], found) for name, value in waiting.items()}
    written = _compact(left_open)
    return StepArguments(written if known == b"{}" else known[:-1] + b"," + written[1:], found)


def encode_template(
    signature: Signature, items: Placeholder | list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> StepArguments:
    """The arguments of a map: the first one is the list of items instead of one of them."""
    if holds_placeholder(items):
        return encode_arguments(signature, (items, *args), kwargs)
    first, partial = signature.positional[0], signature.partial
    body, found = encode_arguments(signature, (Placeholder(), *args), kwargs)
    del found[write_pointer([first])]
    encoded = [partial.encode(partial.bind((), {first: item})) for item in cast("list[Any]", items)]
    template = {**json.loads(body), first: [json.loads(one)[first] for one in encoded]}
    return StepArguments(_compact(template), found)


def encode_items(template: bytes, first: str) -> list[bytes]:
    """The arguments of each job of a map whose list is known."""
    arguments = json.loads(template)
    return [_compact({**arguments, first: item}) for item in arguments[first]]


def holds_placeholder(value: Any) -> bool:
    """Whether the result of a step is in a value. DefinitionError if it is where no result can be put."""
    if isinstance(value, Placeholder):
        return True
    if isinstance(value, list | tuple):
        return any(holds_placeholder(item) for item in value)
    if isinstance(value, dict):
        _refuse_inside(value.keys(), "the key of a dict")
        return any(holds_placeholder(item) for item in value.values())
    if isinstance(value, set | frozenset):
        _refuse_inside(value, "in a set")
    return False


def _refuse_inside(values: Any, place: str) -> None:
    if any(isinstance(value, Placeholder) for value in values):
        raise DefinitionError(f"the result of a step cannot be {place}", hint="pass it in a list, or as a value")


def _skeleton(signature: Signature, value: Any, path: list[str | int], found: dict[str, Placeholder]) -> Any:
    """A value with null in place of results. What is beside them must be JSON already: its type is not known."""
    if isinstance(value, Placeholder):
        node = node_of(value)
        if node is not None and node.is_empty:
            return []  # a map over an empty list: nothing is to come
        found[write_pointer(path)] = value
        return None
    if isinstance(value, list | tuple):
        return [_skeleton(signature, item, [*path, index], found) for index, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _skeleton(signature, item, [*path, key], found) for key, item in value.items()}
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str) and has_wire_form(value):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    problem = f"a {type(value).__name__} cannot be in one list or dict with the result of a step"
    invalid: InvalidArguments = signature.invalid([(".".join(map(str, path)), problem)])
    invalid.hint = "use text, numbers, lists and dicts there, or pass the value as an argument of its own"
    raise invalid


def _compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
