"""A unique beginning or end of an id stands for the id, with a bounded search; jobs are listed by key."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.admin import JobQuery
from jetjobs.admin.partial_ids import complete_id
from jetjobs.errors import ConfigError, JobAmbiguous, JobNotFound
from jetjobs.jetstream.jobs import id_search
from jetjobs.model.wire.ids import anonymous_id, key_token
from tests.support.letters import bury
from tests.support.server import Truth
from tests.support.workers import provisioned, running

FIRST, SECOND = "01a1e2531c847834a12f8c60fdba4d6e", "01a1e2531c847834a12f8c60aaaa4d6e"


def with_task(app: JetJobs) -> None:
    @app.task
    async def greet(name: str = "Ada") -> str:
        return name


async def enqueue(app: JetJobs, **options: Any) -> str:
    return (await app.find("greet").options(**options).enqueue()).id


async def test_a_unique_beginning_or_end_is_completed_and_a_whole_id_is_itself(app: JetJobs) -> None:
    with_task(app)
    async with provisioned(app):
        await enqueue(app, job_id=FIRST)
        await enqueue(app, job_id=SECOND, delay="1h")
        await enqueue(app, job_id="60fdba")  # an id that is also a part of another one
        for part, whole in (
            ("60fdba4d6e", FIRST),
            ("60aaaa4d6e", SECOND),
            (FIRST[:25], FIRST),
            ("60fdba", "60fdba"),
        ):
            assert await complete_id(app.jetstream, part) == whole
        for nothing in ("4d6e", "zzzzzzzz", "no.id", "f8c60fdba4d6"):  # too short, unknown, invalid, a middle
            assert await complete_id(app.jetstream, nothing) == nothing


async def test_all_ids_that_fit_are_listed_up_to_ten(app: JetJobs) -> None:
    with_task(app)
    async with provisioned(app):
        for number in range(12):
            await enqueue(app, job_id=f"order-{number:02}-777777", delay="1h")
        with pytest.raises(JobAmbiguous) as caught:
            await complete_id(app.jetstream, "-777777")
        head, *lines = str(caught.value).split("\n")
        assert head == "12 job ids begin or end with '-777777':"
        assert lines[:2] == ["  order-00-777777  default/greet", "  order-01-777777  default/greet"]
        assert lines[10:] == ["  and 2 more"]
        assert await complete_id(app.jetstream, "7-777777") == "order-07-777777"


async def test_ended_and_dead_jobs_are_found_and_queue_and_task_narrow_the_search(app: JetJobs) -> None:
    with_task(app)
    async with provisioned(app):
        await app.provision(["default", "other"])
        await bury(app, "greet", [b"{}"], ids=[FIRST])
        await bury(app, "other_task", [b"{}"], ids=[SECOND], queue="other")
        done = await enqueue(app)
        async with running(app.worker()):
            await (await app.job(done)).result(10)
        assert await complete_id(app.jetstream, done[-10:]) == done
        assert await complete_id(app.jetstream, done[-10:], only_dead=True) == done[-10:]
        assert await complete_id(app.jetstream, FIRST[-10:], only_dead=True) == FIRST
        with pytest.raises(JobAmbiguous):
            await complete_id(app.jetstream, FIRST[:20])
        assert await complete_id(app.jetstream, FIRST[:20], "other") == SECOND
        assert await complete_id(app.jetstream, FIRST[:20], None, "greet", only_dead=True) == FIRST


async def test_a_job_published_without_jetjobs_is_found_by_the_end_of_its_id(app: JetJobs, truth: Truth) -> None:
    with_task(app)
    async with provisioned(app):
        before = time.time()
        ack = await truth.js.publish(f"{app.namespace}.work.default.normal.greet", b"{}")
        listed = [one.status.id async for one in app.jobs.list()]
        assert listed[0].endswith(f"-{ack.seq}")
        assert len(listed[0]) == len(anonymous_id(before, ack.seq))
        assert await complete_id(app.jetstream, listed[0][-10:]) == listed[0]


async def test_a_stream_with_too_many_ids_is_not_searched_and_the_error_says_so(
    app: JetJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_search, "SEARCH_LIMIT", 3)
    with_task(app)
    async with provisioned(app):
        await app.provision(["default", "other"])
        for _ in range(4):
            await enqueue(app)
        await enqueue(app, job_id=FIRST, queue="other", delay="1h")
        with pytest.raises(JobNotFound, match=r"not searched, .*: live jobs of queue default"):
            await complete_id(app.jetstream, "abcdefabcd")
        with pytest.raises(
            JobAmbiguous, match=f"1 job id begins or ends with .*\n  {FIRST}  other/greet\n  not sea"
        ):
            await complete_id(app.jetstream, FIRST[-10:])  # another job may have the same end
        assert await complete_id(app.jetstream, FIRST) == FIRST
        assert await complete_id(app.jetstream, FIRST[-10:], "other") == FIRST
        with pytest.raises(ConfigError, match="too many ids to search"):
            await app.jobs.page(JobQuery(key="k"))


async def test_jobs_of_a_key_are_listed_newest_first_in_any_state(app: JetJobs) -> None:
    with_task(app)
    token = key_token("order 7")
    async with provisioned(app):
        await bury(app, "greet", [b'{"name": "Eve"}'] * 2, ids=[f"{token}-0{n}" for n in (1, 2)])
        await enqueue(app, key="order 8", delay="1h")
        live = await enqueue(app, key="order 7", delay="1h", job_id="05")
        page = await app.jobs.page(JobQuery(key="order 7"))
        found = [(one.status.id, str(one.status.state), one.status.key, one.arguments) for one in page.items]
        assert found == [
            (live, "scheduled", token, {}),
            (f"{token}-02", "dead", token, {"name": "Eve"}),
            (f"{token}-01", "dead", token, {"name": "Eve"}),
        ]
        assert page.cursor is None
        ids: list[str] = []
        cursor: str | None = None
        for _ in range(3):
            part = await app.jobs.page(JobQuery(key="order 7"), limit=1, cursor=cursor)
            ids += [one.status.id for one in part.items]
            cursor = part.cursor
        assert (ids, cursor) == ([one[0] for one in found], None)
        dead = await app.jobs.page(JobQuery(state="dead", key="order 7", where=(("args.name", "Eve"),)))  # type: ignore[arg-type]
        assert len(dead.items) == 2
        assert (await app.jobs.page(JobQuery(key="no such key"))).items == []
