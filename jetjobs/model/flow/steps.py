"""The headers of a job of a flow as values: its position, the gates after it, what it waits for."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from jetjobs.model.errors import MalformedJob
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import is_id
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.validation import is_token

T = TypeVar("T")

MAX_NODE = 78
"""Characters of a node: the name of a step, or that of a step of a returned flow."""

Policy = Literal["wait", "settled", "cancel"]
"""What the failure of a job does. `wait`: its dependents wait, and a replay goes on. `settled`: the failure counts
as its end. `cancel`: the whole flow is cancelled."""
Fills = Literal["one", "list", ""]
"""What a complete node puts into a place further up: its only result, the list of its results, or nothing."""


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a job in the ledger: `Jetjobs-Step: {node}.{index}.{count}`. A map that is not expanded yet has
    count 0.
    """

    node: str
    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Position:
        """ValueError for any other text.

        >>> Position.parse("resize.3.50")
        Position(node='resize', index=3, count=50)
        """
        node, *numbers = text.split(".")
        if len(numbers) == 2 and _is_number(numbers[0]) and _is_number(numbers[1]) and is_node(node):
            index, count = int(numbers[0]), int(numbers[1])
            if index < count or index == count == 0:
                return cls(node, index, count)
        raise ValueError(f"invalid step {text[:200]!r}")

    def __str__(self) -> str:
        return f"{self.node}.{self.index}.{self.count}"


class GateRef(NamedTuple):
    """Where a gate is: `{queue}.{task}.{uid}`. The key token of its subject is that of the flow."""

    queue: str
    task: str
    uid: str

    @classmethod
    def parse(cls, text: str) -> GateRef:
        """ValueError for any other text."""
        tokens = text.split(".")
        if len(tokens) != 3 or not is_token(tokens[0]) or not is_token(tokens[1]) or not is_id(tokens[2]):
            raise ValueError(f"invalid gate {text[:200]!r}")
        return cls(*tokens)

    def __str__(self) -> str:
        return f"{self.queue}.{self.task}.{self.uid}"


def write_gates(gates: Sequence[GateRef]) -> str:
    return ",".join(map(str, gates))


@functools.lru_cache(1024)
def read_gates(text: str) -> tuple[GateRef, ...]:
    """The gates of `Jetjobs-Next`. ValueError if one is invalid."""
    return tuple(GateRef.parse(each) for each in text.split(",") if each)


class Source(NamedTuple):
    """Where a value comes from: the result of node `charge`, or the list of the results of node `resize[]`."""

    node: str
    many: bool = False

    @classmethod
    def parse(cls, text: Any) -> Source:
        node = str(text).removesuffix("[]")
        if not isinstance(text, str) or not is_node(node):
            raise ValueError(f"invalid node {text!r:.200}")
        return cls(node, text != node)

    def __str__(self) -> str:
        return f"{self.node}[]" if self.many else self.node


@dataclass(frozen=True, slots=True)
class After:
    """What a gate waits for: `Jetjobs-After`, one JSON object."""

    values: Mapping[str, Source]
    """By JSON pointer into the arguments: whose result belongs there."""
    nodes: tuple[str, ...] = ()
    """Nodes that are only waited for; the value of pointer `""`."""
    unless: tuple[str, ...] = ()
    """Of the gate of `on_failed`, the value of `!`: a failure fires it, and the completion of all these nodes
    removes it."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The nodes that must be complete before the gate is fired."""
        return tuple(dict.fromkeys([*(source.node for source in self.values.values()), *self.nodes]))

    @classmethod
    def parse(cls, text: str) -> After:
        """ValueError for anything else.

        >>> After.parse('{"/images": "resize[]", "": ["vacuum"]}').needed
        ('resize', 'vacuum')
        """
        found = _object(text)
        nodes, unless = _nodes(found.pop("", [])), _nodes(found.pop("!", []))
        for pointer in found:
            pointer_tokens(pointer)
        return cls({pointer: Source.parse(source) for pointer, source in found.items()}, nodes, unless)

    def __str__(self) -> str:
        written: dict[str, Any] = {pointer: str(source) for pointer, source in self.values.items()}
        if self.nodes:
            written[""] = list(self.nodes)
        if self.unless:
            written["!"] = list(self.unless)
        return _compact(written)


@dataclass(frozen=True, slots=True)
class Up:
    """The place of a job that returned a flow: `Jetjobs-Up`, on jobs of the returned flow."""

    step: Position
    next: tuple[GateRef, ...] = ()
    fills: Fills = ""
    """What the completion of the job's node puts into the place."""
    settled: bool = False
    """Whether the failure of the job counts as the end of the place."""
    up: Up | None = None
    """The place above this one."""

    @property
    def failing(self) -> Up | None:
        """The nearest place, from here upward, whose end a failure is."""
        if self.settled:
            return self
        return None if self.up is None else self.up.failing

    @classmethod
    def parse(cls, text: str) -> Up:
        """ValueError for anything else."""
        return cls._read(_object(text))

    @classmethod
    def _read(cls, found: Any) -> Up:
        if not isinstance(found, dict) or found.get("fills", "") not in get_args(Fills):
            raise ValueError("invalid place of a returned flow")
        fills: Fills = found.get("fills", "")
        up = found.get("up")
        return cls(
            Position.parse(str(found.get("step", ""))),
            read_gates(str(found.get("next", ""))),
            fills,
            found.get("settled") is True,
            None if up is None else cls._read(up),
        )

    def _written(self) -> dict[str, Any]:
        written: dict[str, Any] = {"step": str(self.step)}
        if self.next:
            written["next"] = write_gates(self.next)
        if self.fills:
            written["fills"] = self.fills
        if self.settled:
            written["settled"] = True
        if self.up is not None:
            written["up"] = self.up._written()
        return written

    def __str__(self) -> str:
        return _compact(self._written())


class OnFailure(NamedTuple):
    """`Jetjobs-On-Failure: {policy}` or `{policy} {gate}`: what a failure does, and the gate of `on_failed`."""

    policy: Policy = "wait"
    gate: GateRef | None = None

    @classmethod
    def parse(cls, text: str) -> OnFailure:
        """ValueError for any other text."""
        policy, _, gate = text.partition(" ")
        if policy not in get_args(Policy):
            raise ValueError(f"invalid policy {policy[:40]!r}")
        return cls(policy, GateRef.parse(gate) if gate else None)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.policy if self.gate is None else f"{self.policy} {self.gate}"


WAIT: Final = OnFailure()
"""The default."""


@dataclass(frozen=True, slots=True)
class FlowHeaders:
    """The headers of a job of a flow."""

    flow: str
    """The id of the flow."""
    step: Position
    next: tuple[GateRef, ...] = ()
    """The gates to look at when the node is complete."""
    after: After | None = None
    """What a gate waits for. A gate that was fired keeps it."""
    map: str | None = None
    """A JSON pointer: the gate is a template, and becomes one job for each item of the list there."""
    up: Up | None = None
    bound: bool = False
    """Whether a gate was fired and its arguments are complete."""
    on_failure: OnFailure = WAIT

    @property
    def waiting(self) -> bool:
        """Whether the job is a gate that has not been fired."""
        return not self.bound and (self.after is not None or self.map is not None)

    def write(self) -> dict[str, str]:
        """The headers. One with its default value is left out."""
        written = {
            h.FLOW: self.flow,
            h.STEP: str(self.step),
            h.NEXT: write_gates(self.next),
            h.AFTER: "" if self.after is None else str(self.after),
            h.UP: "" if self.up is None else str(self.up),
            h.BOUND: "1" if self.bound else "",
            h.ON_FAILURE: "" if self.on_failure == WAIT else str(self.on_failure),
        }
        if self.map is not None:
            written[h.MAP] = self.map
        return {name: value for name, value in written.items() if value}

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> FlowHeaders | None:
        """The headers of a job; None for a job without a flow. MalformedJob if one of them cannot be read."""
        if h.FLOW not in headers:
            return None
        return cls(
            _parsed(headers, h.FLOW, _flow_id),
            _parsed(headers, h.STEP, Position.parse),
            _parsed(headers, h.NEXT, read_gates) if h.NEXT in headers else (),
            _parsed(headers, h.AFTER, After.parse) if h.AFTER in headers else None,
            _parsed(headers, h.MAP, _pointer) if h.MAP in headers else None,
            _parsed(headers, h.UP, _read_up) if h.UP in headers else None,
            headers.get(h.BOUND) == "1",
            _parsed(headers, h.ON_FAILURE, _read_on_failure) if h.ON_FAILURE in headers else WAIT,
        )


def _parsed(headers: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(headers.get(name, ""))
    except ValueError as error:
        raise MalformedJob(f"invalid header {name}: {error}") from None


# The jobs of a group have these in common.
_read_up = functools.lru_cache(1024)(Up.parse)
_read_on_failure = functools.lru_cache(1024)(OnFailure.parse)


@functools.lru_cache(1024)
def _flow_id(text: str) -> str:
    if not is_id(text):
        raise ValueError(f"invalid id {text[:40]!r}")
    return text


def _pointer(text: str) -> str:
    pointer_tokens(text)
    return text


@functools.lru_cache(1024)
def is_node(text: str) -> bool:
    """Whether a node may have this name."""
    return is_id(text) and len(text) <= MAX_NODE


def pointer_tokens(pointer: str) -> list[str]:
    """The tokens of a JSON pointer (RFC 6901). ValueError for a text that is none, or points to the whole.

    >>> pointer_tokens("/images/0/a~1b")
    ['images', '0', 'a/b']
    """
    if not pointer.startswith("/"):
        raise ValueError(f"invalid JSON pointer {pointer[:200]!r}")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]


def write_pointer(tokens: Sequence[str | int]) -> str:
    """The JSON pointer to a value.

    >>> write_pointer(["images", 0, "a/b"])
    '/images/0/a~1b'
    """
    return "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 8


def _object(text: str) -> dict[str, Any]:
    found = read_json(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _nodes(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(node, str) and is_node(node) for node in found):
        raise ValueError(f"invalid nodes {found!r:.200}")
    return tuple(found)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
