"""Flows on a server with a running worker: their shapes, what they pass on, and what is stored."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Annotated, Any

import pytest

from jetjobs import Flow, FlowState, JetJobs, JobState, Secret
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import FlowConflict, QueueNotFound
from jetjobs.jetstream.flows.gates import Delivered, Gates
from jetjobs.jetstream.messages.batch import BatchPublisher
from jetjobs.model.errors import BrokerUnavailable
from jetjobs.model.events import JobStarted
from jetjobs.model.flow import chunks
from jetjobs.model.flow.flow_record import MAX_NODES
from jetjobs.model.flow.steps import GateRef
from jetjobs.model.wire.flow_names import FlowNames
from jetjobs.model.wire.ids import flow_key
from tests.conftest import MakeApp
from tests.support.probe import Probe
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running


class Tasks:
    """Tasks on queue `default`."""

    def __init__(self, app: JetJobs) -> None:
        @app.task
        async def one(n: int) -> int:
            return n

        @app.task
        async def double(n: int) -> int:
            return 2 * n

        @app.task
        async def numbers(n: int) -> list[int]:
            return list(range(n))

        @app.task
        async def total(ns: list[int]) -> int:
            return sum(ns)

        @app.task
        async def sized(kib: int) -> str:
            return "x" * (kib * 1024)

        @app.task
        async def size(text: str) -> int:
            return len(text)

        @app.task
        async def sizes(texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

        self.one, self.double, self.numbers, self.total = one, double, numbers, total
        self.sized, self.size, self.sizes = sized, size, sizes


def starts(probe: Probe) -> Counter[str]:
    return Counter(event.task for event in probe.of(JobStarted))


# Shapes


async def test_a_chain_passes_each_result_to_the_next_task(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        handle = await tasks.one.bind(3).then(tasks.double).then(tasks.double).enqueue()
        assert await handle.result(10) == 12
        assert (await handle.status()).state is FlowState.SUCCEEDED
        await truth.until_empty()


async def test_a_join_gets_the_results_of_a_group_in_its_order(app: JetJobs, probe: Probe, truth: Truth) -> None:
    tasks = Tasks(app)

    @app.task
    async def shown(ns: list[int], more: dict[str, int]) -> str:
        return json.dumps([ns, more])

    async with provisioned_worker(app):
        flow = Flow("join")
        results, other = flow.map(tasks.double, range(20)), flow.add(tasks.one, 7)
        handle = await app.enqueue_flow(flow.returns(flow.add(shown, results, {"other": other})))
        assert json.loads(await handle.result(10)) == [[2 * n for n in range(20)], {"other": 7}]
        assert starts(probe) == {"double": 20, "one": 1, "shown": 1}
        await truth.until_empty()


@pytest.mark.parametrize("count", [0, 1, 7])
async def test_a_map_over_a_list_that_a_step_returns(app: JetJobs, truth: Truth, count: int) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("map")
        doubled = flow.map(tasks.double, flow.add(tasks.numbers, count))
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, doubled)))
        assert await handle.result(10) == sum(2 * n for n in range(count))
        steps = {step.name: (step.count, step.ended) for step in (await handle.status()).steps}
        assert steps == {"numbers": (1, 1), "double": (count, count), "total": (1, 1)}
        await truth.until_empty()


async def test_a_flow_that_ends_in_a_map_has_a_list_as_its_result(app: JetJobs) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        for count in (0, 1, 3):
            flow = Flow("map")
            handle = await app.enqueue_flow(flow.returns(flow.map(tasks.double, flow.add(tasks.numbers, count))))
            assert await handle.result(10) == [2 * n for n in range(count)]
        empty: list[int] = []
        flow = Flow("nothing")
        handle = await app.enqueue_flow(flow.returns(flow.map(tasks.double, empty)))
        assert await handle.result(10) == []


async def test_a_join_of_a_group_without_jobs_gets_an_empty_list(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("join")
        items: list[int] = []
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, flow.map(tasks.double, items))))
        assert await handle.result(10) == 0
        await truth.until_empty()


async def test_a_diamond_over_three_queues(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task
    async def extract(n: int) -> int:
        return n

    @app.task(queue="left")
    async def clean(n: int) -> int:
        return n + 1

    @app.task(queue="right")
    async def stats(n: int) -> int:
        return n + 2

    @app.task(queue="left")
    async def load(rows: int, counts: int) -> list[int]:
        return [rows, counts]

    @app.task
    async def vacuum() -> str:
        return "clean"

    async with provisioned_worker(app):
        flow = Flow("etl")
        raw = flow.add(extract, 1)
        rows = flow.add(load, flow.add(clean, raw), flow.add(stats, raw))
        flow.after(rows).add(vacuum)
        handle = await app.enqueue_flow(flow.returns(rows))
        assert await handle.result(10) == [2, 3]
        await probe.finished(5)
        assert starts(probe) == dict.fromkeys(["extract", "clean", "stats", "load", "vacuum"], 1)
        for queue in ("default", "left", "right"):
            await truth.until_empty(queue)


async def test_a_chain_of_a_hundred_steps(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("long")
        last = flow.add(tasks.one, 5)
        for _ in range(99):
            last = flow.add(tasks.one, last)
        handle = await app.enqueue_flow(flow.returns(last))
        assert await handle.result(20) == 5
        assert len((await handle.status()).steps) == 100
        await truth.until_empty()


# Returned flows


async def test_a_returned_flow_takes_the_place_of_its_job(app: JetJobs, truth: Truth, probe: Probe) -> None:
    tasks = Tasks(app)

    @app.task
    async def summed(n: int) -> Flow[int]:
        flow = Flow("inner")
        return flow.returns(flow.add(tasks.total, flow.map(tasks.double, flow.add(tasks.numbers, n))))

    @app.task
    async def listed(n: int) -> Flow[list[int]]:
        flow = Flow("inner")
        return flow.returns(flow.map(tasks.double, flow.add(tasks.numbers, n)))

    async with provisioned_worker(app):
        flow = Flow("outer")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, flow.map(summed, [1, 2, 3, 4]))))
        assert await handle.result(10) == 0 + 2 + 6 + 12
        flow = Flow("outer")
        lists = await app.enqueue_flow(flow.returns(flow.map(listed, [0, 1, 2])))
        assert await lists.result(10) == [[], [0], [0, 2]]
        await truth.until_empty()
        assert starts(probe)["total"] == 5


async def test_a_batch_grows_by_returning_more(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)

    @app.task
    async def leaf(n: int) -> int:
        return n

    @app.task
    async def tree(depth: int) -> Flow[int]:
        flow = Flow("tree")
        children = flow.map(tree, [depth - 1] * 3) if depth else flow.map(leaf, [1])
        return flow.returns(flow.add(tasks.total, children))

    async with provisioned_worker(app):
        flow = Flow("grown")
        handle = await app.enqueue_flow(flow.returns(flow.add(leaf, flow.add(tree, 3))))
        assert await handle.result(15) == 27
        await truth.until_empty()


async def test_a_job_of_no_flow_may_return_one_and_its_handle_waits_for_it(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)

    @app.task
    async def loud(n: int) -> Flow[int]:
        flow = Flow("inner", id=f"loud-{n}")
        return flow.returns(flow.add(tasks.double, flow.add(tasks.double, n)))

    async with provisioned_worker(app):
        assert await (await loud.enqueue(5)).result(10) == 20
        assert (await app.flows.status("loud-5")).state is FlowState.SUCCEEDED
        await truth.until_empty()
        [record] = [record for record in (await truth.done()).values() if "flow" in record]
        assert record["continued_as"] == {"flow": "loud-5"}


async def test_a_returned_flow_that_cannot_run_makes_its_job_dead(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    tasks = Tasks(app)

    @app.task
    async def wrong(n: int) -> Flow[int]:
        flow = Flow("inner")
        flow.on_failed(tasks.one, 1)
        return flow.returns(flow.add(tasks.double, n))

    async with provisioned_worker(app):
        flow = Flow("outer")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.double, flow.add(wrong, 1))))
        await probe.finished(1, "dead_lettered")
        [letter] = (await truth.dead()).values()
        assert letter["reason"] == "permanent"
        assert "has on_failed, but was returned by a job of another flow" in letter["text"]
        assert (await handle.status()).state is FlowState.FAILED


# Results


@pytest.mark.parametrize("kib", [31, 33, 700, 20 * 1024])
async def test_results_of_any_size_reach_the_next_step(app: JetJobs, truth: Truth, kib: int) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("large")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.size, flow.add(tasks.sized, kib))))
        assert await handle.result(30) == kib * 1024
        await truth.until_empty()
        large = [name for name in await truth.objects() if "result" in name]
        assert bool(large) is (kib > 32)


async def test_a_join_of_large_results_and_a_large_result_of_the_flow(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("large")
        texts = flow.map(tasks.sized, [40, 1, 600])
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.sizes, texts)))
        assert await handle.result(20) == [40 * 1024, 1024, 600 * 1024]
        flow = Flow("large")
        large = await app.enqueue_flow(flow.returns(flow.map(tasks.sized, [40, 1])))
        assert [len(text) for text in await large.result(20)] == [40 * 1024, 1024]


async def test_characters_that_need_escapes_do_not_make_an_entry_too_large(app: JetJobs) -> None:
    @app.task
    async def umlauts(n: int) -> str:
        return "ü\u2028" * n

    @app.task
    async def length(text: str) -> int:
        return len(text)

    async with provisioned_worker(app):
        for n in (2_000, 6_000, 12_000):
            handle = await umlauts.bind(n).then(length).enqueue()
            assert await handle.result(10) == 2 * n


async def test_large_arguments_of_waiting_steps_are_in_the_object_store(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def join(n: int, text: str) -> int:
        return n + len(text)

    @app.task
    async def one(n: int) -> int:
        return n

    async with provisioned_worker(app):
        flow = Flow("large")
        handle = await app.enqueue_flow(flow.returns(flow.add(join, flow.add(one, 1), "x" * 2_000_000)))
        assert await handle.result(20) == 2_000_001
        await truth.until_empty()


async def test_secrets_in_results_stay_masked_in_the_step_that_gets_them(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def login(user: str) -> Annotated[str, Secret()]:
        return f"token of {user}"

    @app.task
    async def use(tokens: list[str], name: str) -> int:
        raise ValueError("no")

    async with provisioned_worker(app):
        flow = Flow("secret")
        tokens = flow.map(login, ["ada", "bob"])
        flow.add(use.options(max_attempts=1), tokens, "open")
        handle = await app.enqueue_flow(flow)
        [failure] = (await settled_failure(handle)).failures
        status = await app.jobs.get(failure.job_id)
        assert (status.state, status.arguments) == (JobState.DEAD, {"tokens": ["***", "***"], "name": "open"})
        entries = [
            message async for message in entries_of(truth, f"jobs.ledger.{flow_key(handle.id)}.login.2.end")
        ]
        assert [headers["Jetjobs-Secret"] for headers in entries] == ["result", "result"]


async def settled_failure(handle: Any) -> Any:
    async for status in handle.follow():
        if status.state is FlowState.FAILED:
            return status
    raise AssertionError("it has not failed")


async def entries_of(truth: Truth, subject: str) -> Any:
    info = await truth.api("STREAM.INFO.jobs-ledger")
    for sequence in range(1, info["state"]["last_seq"] + 1):
        message = await truth.js.get_msg("jobs-ledger", sequence)
        if message.subject == subject:
            yield message.headers


# Stored once


async def test_a_flow_with_an_id_is_stored_once(
    app: JetJobs, truth: Truth, probe: Probe, server: EmbeddedServer
) -> None:
    tasks = Tasks(app)

    def flow(items: list[int]) -> Flow[int]:
        made = Flow("once", id="once-1")
        return made.returns(made.add(tasks.total, made.map(tasks.double, items)))

    async with provisioned(app):
        first, second = await asyncio.gather(*(app.enqueue_flow(flow([1, 2, 3])) for _ in range(2)))
        assert sorted([first.duplicate, second.duplicate]) == [False, True]
        stored = (await truth.api("STREAM.INFO.jobs-work-default"))["state"]["last_seq"]
        again = await app.enqueue_flow(flow([1, 2, 3]))
        assert again.duplicate
        with pytest.raises(FlowConflict, match="another content"):
            await app.enqueue_flow(flow([1, 2, 4]))
        async with running(app.worker()):
            assert await again.result(10) == 12
            await truth.until_empty()
        ran = starts(probe)
        assert (await app.enqueue_flow(flow([1, 2, 3]))).duplicate
    server.stop()
    server.start()
    async with app:
        assert (await app.enqueue_flow(flow([1, 2, 3]))).duplicate
        assert await (await app.flows.handle("once-1")).result(10) == 12
    assert ran == {"double": 3, "total": 1}
    # Four jobs were moved or stored: three children, the gate, and the join that was fired.
    assert (await truth.api("STREAM.INFO.jobs-work-default"))["state"]["last_seq"] == stored + 1


async def test_a_producer_that_dies_between_two_chunks_is_continued_by_the_next(
    app: JetJobs, truth: Truth, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(app)
    monkeypatch.setattr(chunks, "CHUNK_SIZE", 5)
    flow = Flow("chunks", id="chunks")
    flow.returns(flow.add(tasks.total, flow.map(tasks.double, range(12))))
    async with provisioned(app):
        with monkeypatch.context() as broken:
            original, placed = BatchPublisher.store, 0

            async def store(self: BatchPublisher, stream: str, messages: Any) -> int:
                nonlocal placed
                placed += 1
                if placed == 3:
                    raise BrokerUnavailable("cut off")
                return await original(self, stream, messages)

            broken.setattr(BatchPublisher, "store", store)
            with pytest.raises(BrokerUnavailable):
                await app.enqueue_flow(flow)
        assert len(await truth.jobs()) == 1 + 5
        handle = await app.enqueue_flow(flow)
        assert handle.duplicate
        async with running(app.worker()):
            assert await handle.result(10) == sum(2 * n for n in range(12))
            await truth.until_empty()
        assert starts(probe) == {"double": 12, "total": 1}


async def test_an_id_can_be_used_again_when_the_record_of_its_flow_is_gone(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)

    def flow(n: int) -> Flow[int]:
        made = Flow("again", id="again")
        return made.returns(made.add(tasks.double, made.add(tasks.one, n)))

    async with provisioned_worker(app):
        assert await (await app.enqueue_flow(flow(1))).result(10) == 2
        await truth.js.purge_stream("KV_jobs-flows", subject=f"$KV.jobs-flows.{flow_key('again')}")
        second = await app.enqueue_flow(flow(2))
        assert not second.duplicate
        assert await second.result(10) == 4, "neither marks nor entries of the first one count"


async def test_a_flow_for_a_queue_that_does_not_exist_is_refused(app: JetJobs) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        flow = Flow("nowhere")
        flow.add(tasks.one.options(queue="nowhere"), 1)
        with pytest.raises(QueueNotFound, match="queue 'nowhere' does not exist"):
            await app.enqueue_flow(flow)


async def test_of_many_that_fire_a_gate_one_succeeds(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        flow = Flow("gate", id="gate")
        flow.add(tasks.double, flow.add(tasks.one, 1))
        await app.enqueue_flow(flow)
        jetstream = app.jetstream
        gates = Gates(
            jetstream.connection,
            jetstream.publisher,
            jetstream.payloads,
            FlowNames(jetstream.names),
            jetstream.server_clock,
        )
        gate = await gates.read(GateRef("default", "double", "double"), flow_key("gate"), Delivered("", 0))
        assert gate is not None
        # Each under its own message id, as if the server had forgotten them.
        jobs = [gate.job._replace(hop=number) for number in range(20)]
        fired = await asyncio.gather(*(gates.fire(gate, job, lambda: True) for job in jobs))
        assert sum(fired) == 1
        assert len([job for job in await truth.jobs() if ".double." in job]) == 1
        assert await gates.read(GateRef("default", "double", "double"), flow_key("gate"), Delivered("", 0)) is None


async def test_flows_are_listed_by_state_and_name(app: JetJobs) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        for name in ("a", "b"):
            flow = Flow(name, id=f"{name}-1")
            await app.enqueue_flow(flow.returns(flow.add(tasks.double, flow.add(tasks.one, 1))))
        async with running(app.worker()):
            for name in ("a", "b"):
                assert await (await app.flows.handle(f"{name}-1")).result(10) == 2
        flow = Flow("a", id="a-2")
        flow.add(tasks.one, 1)
        await app.enqueue_flow(flow)
        listed = [(status.id, status.state) async for status in app.flows.list(name="a")]
        assert sorted(listed) == [("a-1", FlowState.SUCCEEDED), ("a-2", FlowState.RUNNING)]
        running_ones = [status.id async for status in app.flows.list(state=FlowState.RUNNING)]
        assert running_ones == ["a-2"]


async def test_a_flow_of_many_steps_ends_when_all_of_them_have(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        flow = Flow("many", id="many")
        for number in range(MAX_NODES + 1):
            flow.add(tasks.one, number)
        handle = await app.enqueue_flow(flow)
        assert (await handle.status()).state is FlowState.RUNNING
        async with running(app.worker(slots=100)):
            assert await handle.result(20) is None
            await truth.until_empty()
        assert len((await handle.status()).steps) == MAX_NODES + 1


async def test_following_a_flow_shows_its_progress_until_it_has_ended(app: JetJobs) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        flow = Flow("followed")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, flow.map(tasks.double, [1, 2]))))
        seen: list[tuple[FlowState, int]] = []
        async for status in handle.follow():
            if not seen:
                worker = asyncio.create_task(app.worker(burst=True).run())
            seen.append((status.state, sum(step.ended for step in status.steps)))
        await worker
        assert seen[0] == (FlowState.RUNNING, 0)
        assert seen[-1] == (FlowState.SUCCEEDED, 3)
        assert sorted(seen, key=lambda one: one[1]) == seen


# What is not a flow


async def test_jobs_without_a_flow_leave_nothing_in_the_ledger(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        handles = (await app.enqueue_many([tasks.one.bind(n) for n in range(10)])).stored
        assert [await handle.result(10) for handle in handles] == list(range(10))
        assert (await truth.api("STREAM.INFO.jobs-ledger"))["state"]["last_seq"] == 0
        assert "Jetjobs-Flow" not in json.dumps(await truth.done())


async def test_an_app_that_is_included_sends_flows_through_its_parent(make_app: MakeApp) -> None:
    parent, child = make_app("parent"), JetJobs("child")
    tasks = Tasks(child)
    parent.include(child)
    async with provisioned_worker(parent):
        flow = Flow("included")
        handle = await child.enqueue_flow(flow.returns(flow.add(tasks.double, 4)))
        assert await handle.result(10) == 8
