"""The parts of a run: one server with little storage or a cluster, network links, an app and plain clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import BrokerError
from jetjobs.model.settings import build_settings
from tests.chaos import tasks
from tests.chaos.fleet import Fleet
from tests.chaos.history import History
from tests.chaos.link import Link
from tests.chaos.plan import LEASE_S, PRODUCER, WORKERS
from tests.support.cluster import Cluster
from tests.support.server import Truth

STORAGE = 96 * 1024 * 1024
BALLAST = "ballast"
STORE = "store"
_SIZES = (512 * 1024, 32 * 1024, 1024, 64)


@dataclass
class World:
    """Everything that faults are injected into."""

    folder: Path
    nodes: list[EmbeddedServer]
    cluster: Cluster | None
    links: list[Link]
    fleet: Fleet
    app: JetJobs
    """The producer's app, over its own link."""
    operator: JetJobs
    """The operator's app, connected directly to the server."""
    truth: Truth
    """A plain client, connected directly to the server: it reads its state and fills its storage."""
    history: History

    @property
    def server(self) -> EmbeddedServer:
        """The server, if there is only one."""
        return self.nodes[0]

    @property
    def direct_url(self) -> str:
        return ",".join(node.url for node in self.nodes)

    async def fill(self) -> int:
        """Write ballast until the server refuses even a small message. Returns the number of bytes."""
        written = 0
        for size in _SIZES:
            while await self._publish(b"x" * size):
                written += size
        return written

    async def _publish(self, data: bytes) -> bool:
        try:
            reply = await self.truth.nc.request(BALLAST, data, timeout=5)
        except nats.errors.Error:
            return False
        return "error" not in json.loads(reply.data)

    async def free(self) -> None:
        await self.truth.api(f"STREAM.PURGE.{BALLAST}")

    async def provision(self) -> None:
        """Provision as an operator does: repeat it when the server does not answer."""
        for _ in range(5):
            try:
                await self.operator.provision(self.app.task_queues)
                return
            except BrokerError as error:
                self.history.note(f"provisioning: {error}")
                await asyncio.sleep(1.0)
        raise AssertionError("the operator could not provision")


@contextlib.asynccontextmanager
async def open_world(folder: Path, history: History, *, clustered: bool = False) -> AsyncIterator[World]:
    """Start all parts; stop all of them at the end, also after an error."""
    async with contextlib.AsyncExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder, advertise=False)) if clustered else None
        nodes = cluster.nodes if cluster is not None else [_single(folder, stack)]
        urls = [node.url for node in nodes]
        links = [await stack.enter_async_context(Link(urls).running()) for _ in range(WORKERS + 1)]
        replicas = len(nodes)
        app = tasks.app
        app.configure(settings(links[PRODUCER].url, replicas))
        operator = JetJobs("operator", settings=settings(",".join(urls), replicas))
        await stack.enter_async_context(operator)
        await operator.provision(app.task_queues)
        await stack.enter_async_context(app)
        plain = await plain_client(",".join(urls))
        stack.push_async_callback(plain.close)
        if cluster is None:
            await plain.jetstream().add_stream(name=BALLAST, subjects=[BALLAST])
        (folder / "journal").touch()
        fleet = Fleet([link.url for link in links[:WORKERS]], folder, history, replicas)
        stack.callback(fleet.kill)
        watching = asyncio.create_task(fleet.watch())
        stack.push_async_callback(_end, watching)
        yield World(folder, nodes, cluster, links, fleet, app, operator, Truth(plain), history)


def _single(folder: Path, stack: contextlib.AsyncExitStack) -> EmbeddedServer:
    config = folder / "nats.conf"
    config.write_text(f"jetstream {{ max_file_store: {STORAGE} }}\n")
    server = EmbeddedServer(folder / STORE, extra=("-c", str(config)))
    stack.callback(server.remove)
    return server.start()


async def plain_client(url: str) -> Client:
    """A plain nats-py client. Its errors are expected, because the harness causes them."""

    async def ignore(error: Exception) -> None:
        pass

    return await nats.connect(
        url.split(","), error_cb=ignore, max_reconnect_attempts=-1, reconnect_time_wait=0.1, ping_interval=5
    )


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def settings(url: str, replicas: int) -> Any:
    queues = {"namespace": "jobs", "lease": f"{LEASE_S}s", "replicas": replicas}
    return build_settings({"nats": {"url": url}, "queues": queues})
