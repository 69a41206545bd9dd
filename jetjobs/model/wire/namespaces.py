"""Namespaces: the first token of every name on the server, which keeps apps that share an account apart."""

from __future__ import annotations

import re
from typing import Final

from jetjobs.model.errors import DefinitionError
from jetjobs.model.wire.validation import check_token, is_token

WORK_OF_ALL: Final = "*.work.>"
"""Matches the subjects of the work streams of all namespaces."""
_AMBIGUOUS = re.compile(r"-(work|done)(?=-|$)")


def check_namespace(namespace: str) -> str:
    """The namespace itself, or DefinitionError.

    `-work` and `-done` cannot be part of it: the dead letters of namespace `shop-work` would be in stream
    `shop-work-dead`, which is also queue `dead` of namespace `shop`.
    """
    if _AMBIGUOUS.search(check_token("namespace", namespace)):
        near = _AMBIGUOUS.sub(r"_\1", namespace)
        raise DefinitionError(
            f"invalid namespace {namespace!r}: names of streams contain '-work-' and '-done-'",
            hint=f"set queues.namespace, for example to {near!r}",
        )
    return namespace


def namespace_of(stream: str) -> str | None:
    """The namespace of a work stream; None for any other stream.

    >>> namespace_of("shop-work-mail"), namespace_of("shop-work-home-work-1"), namespace_of("shop-dead")
    ('shop', 'shop', None)
    """
    namespace, part, queue = stream.partition("-work-")
    valid = part and is_token(namespace) and is_token(queue) and not _AMBIGUOUS.search(namespace)
    return namespace if valid else None
