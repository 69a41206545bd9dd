"""A supervisor and its processes, by threads of one process: the sockets are real."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetjobs.cli import links
from jetjobs.cli.links import Answer, Gathering, Reporter


def counter(value: float) -> list[dict[str, Any]]:
    return [{"name": "jobs", "kind": "counter", "text": "Jobs", "samples": [["jobs_total", {}, value]]}]


def gauge(value: float) -> list[dict[str, Any]]:
    return [{"name": "lag", "kind": "gauge", "text": "Lag", "samples": [["lag", {}, value]]}]


def samples(page: list[dict[str, Any]]) -> dict[str, float]:
    return {name: value for family in page for name, _, value in family["samples"]}


class AProcess:
    """The worker's side."""

    def __init__(self, gathering: Gathering, number: int) -> None:
        self.answer = Answer([*counter(1.0), *gauge(1.0)], True, 0.1)
        self.frozen = threading.Event()
        self.frozen.set()
        link = gathering.add(number)
        self.reporter = Reporter(link.theirs.detach(), self._say)
        self.reporter.start()

    def _say(self) -> Answer:
        assert self.frozen.wait(20)
        return self.answer


@pytest.fixture
def gathering() -> Iterator[Gathering]:
    made = Gathering(2)
    yield made
    for number in (1, 2):
        made.remove(number)


@pytest.fixture
def two(gathering: Gathering) -> Iterator[list[AProcess]]:
    processes = [AProcess(gathering, 1), AProcess(gathering, 2)]
    yield processes
    for process in processes:
        process.frozen.set()
        process.reporter.stop()


def test_pages_are_gathered_at_each_scrape(gathering: Gathering, two: list[AProcess]) -> None:
    assert samples(gathering.page()) == {"jobs_total": 2.0, "lag": 1.0}
    two[0].answer = Answer([*counter(5.0), *gauge(3.0)], True, 0.1)
    assert samples(gathering.page()) == {"jobs_total": 6.0, "lag": 3.0}


def test_all_must_be_ready(gathering: Gathering, two: list[AProcess]) -> None:
    assert gathering.ready()
    two[1].answer = two[1].answer._replace(ready=False)
    assert not gathering.ready()


def test_one_process_too_few_is_not_ready(gathering: Gathering) -> None:
    one = AProcess(gathering, 1)
    assert not gathering.ready()
    one.reporter.stop()


def test_the_one_that_has_been_silent_longest_counts(gathering: Gathering, two: list[AProcess]) -> None:
    assert 0.1 <= gathering.silent_s() < 20
    two[1].answer = two[1].answer._replace(silent_s=45.0)
    assert gathering.silent_s() >= 45.0


def test_a_process_that_has_not_begun_is_not_silent(gathering: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PATIENCE_S", 0.1)
    gathering.add(1)
    assert gathering.silent_s() == 0.0
    assert not gathering.ready()
    assert gathering.page() == []


def test_a_process_that_does_not_answer_keeps_its_counters_and_loses_its_gauges(
    gathering: Gathering, two: list[AProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    two[0].answer = Answer([*counter(5.0), *gauge(3.0)], True, 0.1)
    assert samples(gathering.page()) == {"jobs_total": 6.0, "lag": 3.0}
    monkeypatch.setattr(links, "PATIENCE_S", 0.2)
    two[0].frozen.clear()
    assert samples(gathering.page())["jobs_total"] == 6.0
    assert not gathering.ready()
    before = gathering.silent_s()
    time.sleep(0.05)
    assert gathering.silent_s() > before


def test_a_process_that_has_ended_keeps_its_counters_to_the_last(
    gathering: Gathering, two: list[AProcess]
) -> None:
    assert samples(gathering.page()) == {"jobs_total": 2.0, "lag": 1.0}
    two[0].answer = Answer([*counter(7.0), *gauge(9.0)], True, 0.1)
    two[0].reporter.stop()  # its last word was not asked for
    gathering.remove(1)
    assert samples(gathering.page()) == {"jobs_total": 8.0, "lag": 1.0}
    again = AProcess(gathering, 1)
    assert samples(gathering.page()) == {"jobs_total": 9.0, "lag": 1.0}
    again.reporter.stop()


def test_removing_a_process_twice_or_one_that_never_was_is_nothing(gathering: Gathering) -> None:
    gathering.remove(9)
    gathering.add(1)
    gathering.remove(1)
    gathering.remove(1)
    assert gathering.page() == []


def test_a_link_is_taken_from_the_environment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(links.VARIABLE, raising=False)
    assert Reporter.from_environment(lambda: Answer([], True, 0.0)) is None
