"""What `top` reads from the server: bounded, readable and without harm from odd records."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import Annotated

from jetjobs import JetJobs, RetryPolicy, Secret
from jetjobs.cli.live import collector as collecting
from jetjobs.cli.live.collector import Collector
from jetjobs.cli.live.frame import frame
from jetjobs.cli.live.snapshot import Data
from jetjobs.cli.live.view_state import Page, View
from jetjobs.model.wire.subjects import kv_subject
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import running

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m"


def screen(data: Data, page: Page, columns: int = 100) -> str:
    drawn = frame(View((page,)), data, columns, 30)
    assert all(text.isprintable() for line in drawn.lines for text, _ in line)
    return "\n".join("".join(text for text, _ in line) for line in drawn.lines)


async def test_a_job_of_a_lost_worker_says_when_it_comes_back(app: JetJobs, truth: Truth) -> None:
    ended = asyncio.Event()

    @app.task
    async def wait() -> None:
        await ended.wait()

    async with app:
        await app.provision(["default"])
        collector = Collector(app)
        async with running(app.worker(name="here")):
            await wait.enqueue()
            held = await eventually(app.jobs.running, 30)
            record = {
                "id": "j1",
                "run": "r",
                "task": "wait",
                "queue": "default",
                "worker": "gone",
                "started_at": 5.0,
            }
            await truth.js.publish(kv_subject("jobs-running", "j1"), json.dumps(record).encode())
            snapshot = await collector.snapshot()
            assert snapshot.lost.keys() == {"j1"}
            assert 29 < snapshot.lost["j1"] <= 30
            assert held[0].id not in snapshot.lost
            assert "worker lost, back in ≤ 30 s" in screen(Data(snapshot), Page("queues"))
            collector._lost_since["j1"] = time.monotonic() - 31
            snapshot = await collector.snapshot()
            ended.set()
            assert "worker lost, waiting" in screen(Data(snapshot), Page("queues"))


async def test_of_many_queues_the_first_update_reads_all_and_others_a_part_and_those_on_the_screen(
    app: JetJobs,
) -> None:
    names = [f"q{i:02}" for i in range(60)]
    async with app:
        await app.provision(names)
        collector = Collector(app)
        first = await collector.snapshot()
        assert {queue.queue for queue in first.queues} >= {*names}
        second = await collector.snapshot(names[:5])
        before = {queue.queue: queue.at for queue in first.queues}
        again = [queue.queue for queue in second.queues if queue.at > before[queue.queue]]
        assert len(again) == collecting.QUEUES_AT_ONCE
        assert {*again} >= {*names[:5]}
        assert {name for name in names[:5] if second.history[name].series(second.queues[0].at)} == {*names[:5]}
        await app.queues.delete(names[0])
        assert names[0] not in {queue.queue for queue in (await collector.snapshot()).queues}


async def test_pages_show_masked_arguments_dead_letters_and_odd_records(app: JetJobs, truth: Truth) -> None:
    @app.task(retry=RetryPolicy(max_attempts=1))
    async def broken(size: int) -> None:
        raise RuntimeError(HOSTILE + "x" * 1_000_000)

    @app.task
    async def later(token: Annotated[str, Secret], text: str) -> None: ...

    async with app:
        await app.provision(["default"])
        waiting = await later.options(delay=timedelta(hours=1)).enqueue("hidden", HOSTILE + "y" * 900_000)
        dead = await broken.enqueue(1)
        async with running(app.worker()):
            await eventually(lambda: app.dead.get(dead.id), 30)
        odd: dict[str, object] = dict.fromkeys(("name", "host", "phase", "version", "python"), HOSTILE)
        odd |= {"tasks": {HOSTILE: HOSTILE}, "queues": {HOSTILE: {}}, "slots": {"busy": 9}}
        await truth.js.publish(kv_subject("jobs-workers", "odd"), json.dumps(odd).encode())
        collector = Collector(app)
        snapshot = await collector.snapshot()

        async def shown(page: Page) -> str:
            return screen(Data(snapshot, await collector.content(page)), page)

        job = await shown(Page("job", ("default", "later", waiting.id)))
        assert '"token": "***"' in job
        assert "hidden" not in job
        assert "RuntimeError" in await shown(Page("job", ("default", "broken", dead.id)))
        for page in (Page("dead"), Page("dead", ("default",))):
            assert dead.id[-10:] in await shown(page)
        assert "no dead letters" in await shown(Page("dead", ("other",)))
        assert "later" in await shown(Page("queue", ("default",)))
        assert "odd" in await shown(Page("workers"))
        assert "no schedules" in await shown(Page("schedules"))
        assert "does not exist" in await shown(Page("queue", ("nosuch",)))
        assert "no job with id" in await shown(Page("job", ("default", "later", "nosuch")))


async def test_the_newest_dead_letters_come_first_and_are_read_again_only_after_a_change(
    app: JetJobs, truth: Truth
) -> None:
    async with app:
        await app.provision(["default", "rare"])
        for number in range(3):
            await truth.js.publish("jobs.dead.rare.old.r" + str(number), b"{}")
        for number in range(collecting._WINDOW + 20):
            await truth.js.publish(f"jobs.dead.default.new.d{number}", b"{}")
        collector = Collector(app)
        found = await collector.content(Page("dead"))
        assert found is not None
        assert [letter.id for letter in found.letters[:2]] == [
            f"d{collecting._WINDOW + 19}",
            f"d{collecting._WINDOW + 18}",
        ]
        assert (len(found.letters), found.more) == (collecting.LETTERS, True)
        rare = await collector.content(Page("dead", ("rare",)))
        assert rare is not None
        assert ([letter.id for letter in rare.letters], rare.more) == (["r2", "r1", "r0"], False)
        collector._content_at = 0.0
        again = await collector.content(Page("dead", ("rare",)))
        assert again is rare
