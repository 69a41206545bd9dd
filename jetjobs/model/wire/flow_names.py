"""Build and parse the names of flows on the wire: the ledger, marks of placed chunks, gates and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from jetjobs.model.wire.subjects import GATE, MARK, Names

LedgerKind = Literal["end", "dead"]
"""`end`: entries that count towards the completion of their node. `dead`: failures that are only shown."""


@dataclass(frozen=True, slots=True)
class LedgerSubject:
    """The parts of the subject of ledger entries: `{namespace}.ledger.{fkey}.{node}.{count}.{kind}`."""

    namespace: str
    fkey: str
    node: str
    count: int
    kind: LedgerKind

    @classmethod
    def parse(cls, subject: str) -> LedgerSubject:
        """ValueError for a subject of any other form.

        >>> LedgerSubject.parse("shop.ledger.kabc.resize.50.end").count
        50
        """
        tokens = subject.split(".")
        if len(tokens) != 6 or tokens[1] != "ledger" or not all(tokens):
            raise ValueError(f"not the subject of a ledger entry: {subject!r}")
        namespace, _, fkey, node, count, kind = tokens
        if kind not in ("end", "dead") or not count.isascii() or not count.isdigit() or len(count) > 8:
            raise ValueError(f"not the subject of a ledger entry: {subject!r}")
        return cls(namespace, fkey, node, int(count), cast("LedgerKind", kind))


@dataclass(frozen=True, slots=True)
class FlowNames:
    """The names of flows in one namespace. `fkey` is the key token of a flow: `ids.flow_key`."""

    names: Names

    @property
    def ledger_stream(self) -> str:
        return f"{self.names.namespace}-ledger"

    @property
    def ledger_filter(self) -> str:
        return f"{self.names.namespace}.ledger.>"

    def ledger_of(self, fkey: str) -> str:
        """Matches all entries of a flow."""
        return f"{self.names.namespace}.ledger.{fkey}.>"

    def ledger(self, fkey: str, node: str, count: int | Literal["*"], kind: LedgerKind | Literal["*"]) -> str:
        """The subject of the entries of a node; count and kind may be `*`."""
        return f"{self.names.namespace}.ledger.{fkey}.{node}.{count}.{kind}"

    def mark(self, queue: str, fkey: str, name: str, first: int) -> str:
        """The mark of a placed chunk. `first` is the index of its first message in the list that was cut.

        Its eight tokens keep it apart from jobs, which have seven.
        """
        return f"{self.names.namespace}.work.{queue}.{MARK}.flow.{fkey}.{name}.{first}"

    def marks_of(self, queue: str, fkey: str) -> str:
        """Matches all marks of a flow in a queue."""
        return f"{self.names.namespace}.work.{queue}.{MARK}.flow.{fkey}.>"

    def gate(self, queue: str, task: str, fkey: str, uid: str) -> str:
        return self.names.job(queue, GATE, task, fkey, uid)

    def jobs_of(self, queue: str, lane: str, fkey: str) -> str:
        """Matches the jobs of a flow in a lane; `*` for all lanes."""
        return self.names.job(queue, lane, "*", fkey, "*")

    @property
    def flows_bucket(self) -> str:
        """The bucket of flow records. The key is the key token of the flow."""
        return f"{self.names.namespace}-flows"

    def cancel_key(self, fkey: str) -> str:
        """The key of a flow's cancel mark in the bucket of cancel marks."""
        return f"flow.{fkey}"
