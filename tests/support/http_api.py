"""The HTTP API of an app over a real socket, and a client for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from jetjobs import JetJobs
from jetjobs.http.server import Server
from tests.support.probe import wait_until


class Client(httpx.AsyncClient):
    """A client whose paths are below /api/v1. `call` checks the status and returns the JSON."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(base_url=f"{server.url}/api/v1", timeout=20, **options)
        self.server = server
        self.root = server.url

    async def call(self, method: str, path: str, status: int = 200, **options: Any) -> Any:
        answer = await self.request(method, path, **options)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.json()


@contextlib.asynccontextmanager
async def serving(app: JetJobs, **options: Any) -> AsyncIterator[Client]:
    """Serve the API of an open app on a free port of this machine."""
    server = Server(app, **options)
    task = asyncio.create_task(server.run_until_stopped())
    try:
        await wait_until(lambda: server.started)
        async with Client(server) as client:
            yield client
    finally:
        server.stop()
        await task
