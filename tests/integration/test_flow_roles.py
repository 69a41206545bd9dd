"""Flows with the roles of the example configuration, and with a worker that may neither purge nor delete."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jetjobs import Flow, FlowState, JetJobs, RetryPolicy
from jetjobs.admin import FlowCancelOutcome
from jetjobs.errors import FlowCancelled, FlowFailed
from jetjobs.model.events import JobStarted, PermissionDenied
from jetjobs.model.wire.ids import flow_key
from tests.support.probe import Probe, eventually, wait_until
from tests.support.roles import GuardedServer, Removed
from tests.support.server import Truth
from tests.support.workers import running

PURGES = [
    Removed("worker", "publish", subject)
    for subject in (
        "$JS.API.STREAM.PURGE.OBJ_jobs-payloads",
        "$JS.API.STREAM.PURGE.KV_jobs-checkpoints",
        "$JS.API.STREAM.MSG.DELETE.jobs-work-default",
    )
]


class Site:
    """The apps of one namespace, each in its role."""

    def __init__(self, server: GuardedServer) -> None:
        self._server = server
        self.fixed = False

    def app(self, role: str) -> JetJobs:
        app = JetJobs("t", settings=self._server.settings_of(role))

        @app.task
        async def one(n: int) -> int:
            return n

        @app.task
        async def numbers(n: int) -> list[int]:
            return list(range(n))

        @app.task(retry=RetryPolicy(max_attempts=1))
        async def check(n: int) -> int:
            if not self.fixed:
                raise ValueError("not yet")
            return n

        @app.task
        async def total(ns: list[int]) -> int:
            return sum(ns)

        @app.task
        async def nested(n: int) -> Flow[int]:
            flow = Flow("inner")
            return flow.returns(flow.add(total, flow.map(one, flow.add(numbers, n))))

        @app.task
        async def wait(n: int) -> int:
            await asyncio.sleep(30)
            return n

        return app


@pytest.mark.parametrize("removed", [[], PURGES], ids=["example", "no purge"])
async def test_the_roles_of_the_example_suffice_for_flows(tmp_path: Path, removed: list[Removed]) -> None:
    with GuardedServer(tmp_path, *removed) as server:
        site = Site(server)
        async with site.app("setup") as app:
            await app.provision(["default"])
        truth = await Truth.connect(server.url.replace("//", "//root:secret@"))
        probe = Probe()
        worker = site.app("worker")
        worker.observe(probe)
        async with (
            worker,
            site.app("producer") as producer,
            site.app("operator") as operator,
            running(worker.worker(queues={"default": None})),
        ):
            producer.observe(probe)
            operator.observe(probe)
            left = await everything(site, producer, operator)
            # This worker may not purge gates: those of a flow that it cancels stay until its deadline.
            await eventually(truth.jobs, where=lambda found: found == [left])
        await truth.close()
    denied = {event.subject for event in probe.of(PermissionDenied)}
    assert denied <= {one.subject for one in removed} | {"$JS.API.STREAM.PURGE.jobs-work-default"}


async def test_a_worker_that_may_not_write_the_ledger_holds_jobs_of_flows_until_it_may(tmp_path: Path) -> None:
    with GuardedServer(tmp_path, Removed("worker", "publish", "jobs.ledger.>")) as server:
        site = Site(server)
        async with site.app("setup") as app:
            await app.provision(["default"])
        worker, probe = site.app("worker"), Probe()
        worker.observe(probe)
        async with (
            worker,
            site.app("producer") as producer,
            running(worker.worker(queues={"default": None})) as runs,
        ):
            tasks = producer.tasks
            flow = Flow("chain")
            handle = await producer.enqueue_flow(flow.returns(flow.add(tasks["one"], flow.add(tasks["one"], 1))))
            other = await tasks["numbers"].enqueue(1)
            assert await other.result(10) == [0]
            await wait_until(lambda: "jobs.ledger" in runs.problem)
            server.change()
            assert await handle.result(20) == 1
        assert len(probe.of(JobStarted, lambda event: event.task == "one")) == 2


async def everything(site: Site, producer: JetJobs, operator: JetJobs) -> str:
    """Use flows in every way. Returns the subject of the gate that is left."""
    tasks = producer.tasks
    flow = Flow("map")
    summed = flow.add(tasks["total"], flow.map(tasks["one"], flow.add(tasks["numbers"], 5)))
    handle = await producer.enqueue_flow(flow.returns(flow.add(tasks["one"], summed)))
    assert await handle.result(10) == 10
    assert await (await tasks["nested"].enqueue(5)).result(10) == 10
    flow = Flow("named", id="named")
    assert not (await producer.enqueue_flow(flow.returns(flow.add(tasks["one"], 1)))).duplicate
    assert (await producer.enqueue_flow(flow)).duplicate

    flow = Flow("failing")
    failing = await producer.enqueue_flow(flow.returns(flow.add(tasks["total"], flow.map(tasks["check"], [1]))))
    with pytest.raises(FlowFailed):
        await failing.result(10)
    flow = Flow("cancelling", on_failure="cancel", id="cancelling")
    flow.add(tasks["total"], flow.map(tasks["check"], [1]))
    cancelling = await producer.enqueue_flow(flow)
    with pytest.raises(FlowCancelled):
        await cancelling.result(10)
    site.fixed = True
    async with site.app("root") as root:
        await root.flows.retry(failing.id)
    assert await failing.result(10) == 1

    flow = Flow("long", id="long")
    flow.add(tasks["total"], flow.map(tasks["wait"], range(3)))
    await producer.enqueue_flow(flow)
    assert (await operator.flows.cancel("long", by="ada")).outcome is FlowCancelOutcome.CANCELLED
    assert (await operator.flows.status("long")).state is FlowState.CANCELLED
    return f"jobs.work.default.gate.total.{flow_key('cancelling')}.total"
