"""Placeholders: what stands for the result of a step while a flow is declared."""

from __future__ import annotations

from typing import Any, NoReturn

from jetjobs.model.errors import NotYetKnown

_TOUCHES = (
    "getitem setitem delitem iter next len bool contains call await aiter anext enter exit aenter aexit reversed "
    "str format bytes int float complex index round trunc floor ceil "
    "eq ne lt le gt ge add radd sub rsub mul rmul matmul rmatmul truediv rtruediv floordiv rfloordiv mod rmod "
    "divmod rdivmod pow rpow and rand or ror xor rxor lshift rlshift rshift rrshift neg pos abs invert"
)


class Placeholder:
    """The result of a step, which does not exist yet. It can be passed to other steps of its flow; any other use
    raises NotYetKnown.
    """

    __slots__ = ("_jetjobs_node",)
    __hash__ = object.__hash__

    def __init__(self, node: Any = None) -> None:
        object.__setattr__(self, "_jetjobs_node", node)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # for libraries that look whether a method exists
        raise _touched(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise _touched(self)

    def __repr__(self) -> str:
        return f"<result of {_shown(self)}>"


def node_of(placeholder: Placeholder) -> Any:
    """The step whose result it is; None in a chain, where it is the result of the link before it."""
    return object.__getattribute__(placeholder, "_jetjobs_node")


def _shown(placeholder: Placeholder) -> str:
    node = node_of(placeholder)
    return "the task before it" if node is None else f"step {node.name!r}"


def _touched(placeholder: Placeholder) -> NotYetKnown:
    return NotYetKnown(
        f"the result of {_shown(placeholder)} is not known while the flow is declared",
        hint="pass it whole, or in a list or dict, to another step, and use it in that step's task."
        " A task that decides what follows returns a flow",
    )


def _touch(self: Placeholder, *args: object, **kwargs: object) -> NoReturn:
    raise _touched(self)


for _name in _TOUCHES.split():
    setattr(Placeholder, f"__{_name}__", _touch)
