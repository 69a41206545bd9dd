"""Give public classes the module that users import them from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ForwardRef, TypeVar

C = TypeVar("C", bound=type)


def public(module: str) -> Callable[[C], C]:
    """Set the `__module__` of a class: `@public("jetjobs")`.

    Error types are stored with dead letters and results under this name, and pickles refer to it, so that moving
    the code changes neither. The annotations keep the namespace they were written in: `get_type_hints` would
    otherwise look for their names in `module`.
    """

    def publish(kind: C) -> C:
        home, annotations = kind.__module__, inspect.get_annotations(kind)
        if annotations:
            kind.__annotations__ = {name: _bound(hint, home) for name, hint in annotations.items()}
        kind.__module__ = module
        return kind

    return publish


def _bound(hint: Any, home: str) -> Any:
    if isinstance(hint, ForwardRef) and hint.__forward_module__ is None:
        hint = hint.__forward_arg__
    return ForwardRef(hint, module=home, is_class=True) if isinstance(hint, str) else hint
