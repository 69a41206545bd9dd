"""The plan of a run, drawn from the seed before it starts: jobs, faults, replays and changes. No I/O."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from tests.chaos.kinds import KINDS

WORKERS = 4
PRODUCER = WORKERS
"""The index of the producer's network link: the workers have 0 to WORKERS - 1."""
LEASE_S = 2.0
JOBS_PER_SECOND = 12.0
BATCH = (10, 60)

_ANYWHERE = (
    "kill_worker",
    "term_worker",
    "freeze_worker",
    "poison",
    "cut",
    "delay",
    "blackhole",
    "slow_answers",
    "delete_consumer",
)
FAULTS = (*_ANYWHERE, "kill_server", "restart_server", "fill_storage", "older_store")
CLUSTER_FAULTS = ("kill_leader", "freeze_leader", "hold_node", "two_down", "rolling_restart")
"""What a cluster has instead of the faults of a single server."""
NODES = 3
LEAP = "leap_clock"
"""Not one of the faults: it has a plan of its own, because it may coincide with any of them."""
KILL_ALL = "kill_all_workers"
"""Injected during half of the faults that slow down settling, where a move could be interrupted."""
LANES = ("high", "normal", "normal", "low", "returned")
TIMED = tuple(f"timed-{number}" for number in range(4))
"""Schedules that are changed during the run."""
EDITS = ("put", "put", "move", "move", "pause", "resume", "delete")
_SLOW = ("delay", "fill_storage")
_NETWORK = ("cut", "delay", "blackhole", "slow_answers")
_HEALS_S = 8.0
"""About how long a cluster takes until all replicas are current again."""
_LEAPS_S = (-3600, -3600, -30, -5, 5, 30, 3600, 3600)
_LASTS = {
    "term_worker": (1.0, 3.0),
    "freeze_worker": (LEASE_S * 1.3, LEASE_S * 3),
    "kill_server": (0.2, 1.5),
    "restart_server": (0.2, 1.5),
    "delay": (2.0, 5.0),
    "blackhole": (2.0, 6.0),
    "slow_answers": (4.0, 7.0),
    "delete_consumer": (1.0, 1.0),
    "fill_storage": (2.0, 5.0),
    "older_store": (0.1, 2.5),
    "kill_leader": (0.2, 3.0),
    "freeze_leader": (5.0, 12.0),
    "hold_node": (2.0, 6.0),
    "two_down": (0.5, 4.0),
}


class PlannedJob(NamedTuple):
    at: float
    kind: str
    number: int
    queue: str
    draw: float
    """A number from 0 to 1 that the producer uses as the kind needs it."""

    def __str__(self) -> str:
        return f"{self.at:8.3f} job    {self.kind} #{self.number} queue={self.queue} draw={self.draw:.3f}"


class PlannedFault(NamedTuple):
    at: float
    kind: str
    lasts_s: float
    links: tuple[int, ...]
    """The affected workers or network links."""
    lane: tuple[str, str]
    late: bool
    """Of a blackhole: held data passes late; otherwise the connections are cut. Of slow answers: all are late;
    otherwise only confirmations. Of an older store: the server is killed; otherwise it stops gracefully."""

    def __str__(self) -> str:
        about = {
            "delete_consumer": "/".join(self.lane),
            "blackhole": f"links={list(self.links)} then {'late' if self.late else 'cut'}",
            "kill_leader": f"of {self.lane[0]}",
            "freeze_leader": f"of {self.lane[0]}",
            "two_down": f"of {self.lane[0]} and one more",
            "slow_answers": f"links={list(self.links)} {'all' if self.late else 'confirmations'}",
            "hold_node": f"node={self.links} then {'late' if self.late else 'cut'}",
        }.get(self.kind, f"links={list(self.links)}" if self.links else "")
        return f"{self.at:8.3f} fault  {self.kind} {self.lasts_s:.2f} s {about}".rstrip()


class PlannedLeap(NamedTuple):
    at: float
    who: int
    """The worker, or PRODUCER."""
    offset_s: int
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at:8.3f} leap   clock of {self.who} by {self.offset_s:+d} s for {self.lasts_s:.2f} s"


class PlannedReplay(NamedTuple):
    at: float
    most: int

    def __str__(self) -> str:
        return f"{self.at:8.3f} replay up to {self.most} dead letters"


class PlannedMove(NamedTuple):
    at: float
    most: int
    lane: str

    def __str__(self) -> str:
        return f"{self.at:8.3f} move   up to {self.most} queued jobs to {self.lane}"


class PlannedEdit(NamedTuple):
    at: float
    name: str
    kind: str

    def __str__(self) -> str:
        return f"{self.at:8.3f} edit   {self.kind} schedule {self.name}"


class Plan(NamedTuple):
    seed: int
    seconds: float
    cluster: int
    """The number of servers; 0 for a single one."""
    jobs: list[PlannedJob]
    faults: list[PlannedFault]
    leaps: list[PlannedLeap]
    replays: list[PlannedReplay]
    moves: list[PlannedMove]
    edits: list[PlannedEdit]

    def __str__(self) -> str:
        everything = [(one.at, str(one)) for part in self[3:] for one in part]
        return "\n".join(text for _, text in sorted(everything))


def make_plan(
    seed: int, seconds: float, queues: tuple[str, ...], cluster: int = 0, only: tuple[str, ...] = ()
) -> Plan:
    """The same arguments give the same plan. `only` restricts the kinds of faults.

    Each part has its own random generator, so that a new kind of job does not change the faults.
    """
    possible: tuple[str, ...] = (*_ANYWHERE, *CLUSTER_FAULTS) if cluster else FAULTS
    kinds = tuple(kind for kind in possible if not only or kind in only)
    leaps = _leaps(random.Random(f"{seed} leaps"), seconds) if not only or LEAP in only else ()
    return Plan(
        seed,
        seconds,
        cluster,
        list(_jobs(random.Random(f"{seed} jobs"), seconds, queues)),
        list(_faults(random.Random(f"{seed} faults"), seconds, queues, kinds)) if kinds else [],
        list(leaps),
        list(_replays(random.Random(f"{seed} replays"), seconds)),
        list(_moves(random.Random(f"{seed} moves"), seconds)),
        list(_edits(random.Random(f"{seed} edits"), seconds)),
    )


def _jobs(draw: random.Random, seconds: float, queues: tuple[str, ...]) -> Iterator[PlannedJob]:
    names = [kind.name for kind in KINDS.values() if kind.weight]
    weights = [KINDS[name].weight for name in names]
    at, number = 0.0, 0
    while (at := at + draw.expovariate(JOBS_PER_SECOND)) < seconds:
        number += 1
        yield PlannedJob(at, draw.choices(names, weights)[0], number, draw.choice(queues), draw.random())


def _faults(
    draw: random.Random, seconds: float, queues: tuple[str, ...], kinds: tuple[str, ...]
) -> Iterator[PlannedFault]:
    """One fault every two to four seconds, or later when one lasts longer. All kinds occur before one repeats."""
    at = draw.uniform(1.0, 2.0)
    while True:
        for kind in draw.sample(kinds, len(kinds)):
            if at >= seconds:
                return
            lasts_s = draw.uniform(*_LASTS.get(kind, (0.0, 0.0)))
            lane = (draw.choice(queues), draw.choice(LANES))
            links, late = _links(draw, kind), draw.random() < 0.5
            if kind in _SLOW and draw.random() < 0.5:
                links = tuple(range(WORKERS + 1)) if kind == "delay" else ()
                yield PlannedFault(at, kind, lasts_s, links, lane, late)
                yield PlannedFault(at + draw.uniform(0.4, 0.9) * lasts_s, KILL_ALL, 0.0, (), lane, late)
            else:
                yield PlannedFault(at, kind, lasts_s, links, lane, late)
            at += max(draw.uniform(2.0, 4.0), lasts_s + draw.uniform(0.2, 1.5))
            at += _HEALS_S if kind in CLUSTER_FAULTS else 0.0


def _leaps(draw: random.Random, seconds: float) -> Iterator[PlannedLeap]:
    """One process at a time."""
    at = 0.0
    while (at := at + draw.uniform(1.0, 5.0)) < seconds:
        lasts_s = draw.uniform(2.0, 6.0)
        yield PlannedLeap(at, draw.randrange(WORKERS + 1), draw.choice(_LEAPS_S), lasts_s)
        at += lasts_s


def _links(draw: random.Random, kind: str) -> tuple[int, ...]:
    if kind in ("term_worker", "older_store"):
        return tuple(draw.sample(range(WORKERS), 2))
    if kind.endswith("_worker"):
        return (draw.randrange(WORKERS),)
    if kind == "hold_node":
        return (draw.randrange(NODES),)
    if kind in _NETWORK:
        everyone = tuple(range(WORKERS + 1))
        return everyone if draw.random() < 0.3 else tuple(sorted(draw.sample(everyone, draw.choice((1, 2)))))
    return ()


def _replays(draw: random.Random, seconds: float) -> Iterator[PlannedReplay]:
    at = 0.0
    while (at := at + draw.uniform(3.0, 7.0)) < seconds:
        yield PlannedReplay(at, draw.randint(1, 6))


def _moves(draw: random.Random, seconds: float) -> Iterator[PlannedMove]:
    at = 0.0
    while (at := at + draw.uniform(0.3, 1.0)) < seconds:
        yield PlannedMove(at, draw.randint(1, 12), draw.choice(("high", "normal", "low")))


def _edits(draw: random.Random, seconds: float) -> Iterator[PlannedEdit]:
    yield from (PlannedEdit(0.0, name, "put") for name in TIMED)
    at = 0.0
    while (at := at + draw.uniform(0.2, 2.0)) < seconds:
        yield PlannedEdit(at, draw.choice(TIMED), draw.choice(EDITS))
