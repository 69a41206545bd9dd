"""The HTTP API of an app over a real socket, and a client that checks every answer against its model."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx
from pydantic import TypeAdapter

from jetjobs import JetJobs
from jetjobs.http.models.answers import ProblemDetails
from jetjobs.http.problems import MEDIA_TYPE
from jetjobs.http.routes import TABLE, Row
from jetjobs.http.server import Server
from tests.support.probe import wait_until


class Client(httpx.AsyncClient):
    """A client whose paths are below /api/v1. `call` checks the status and returns the JSON."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(base_url=f"{server.url}/api/v1", timeout=20, **options)
        self.server = server

    async def call(self, method: str, path: str, status: int = 200, **options: Any) -> Any:
        answer = await self.request(method, path, **options)
        assert answer.status_code == status, (answer.status_code, answer.text)
        check(answer)
        return answer.json()


def row_of(method: str, path: str) -> Row:
    """The row of the table for a path such as /api/v1/jobs/x."""
    rows = [row for row in TABLE if row.method == method and _pattern(row.path).fullmatch(path)]
    assert len(rows) == 1, (method, path, rows)
    return rows[0]


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", path))


@cache
def _model(row: Row, status: int) -> TypeAdapter[Any]:
    return TypeAdapter(row.answers[status])


def check(answer: httpx.Response) -> None:
    """The answer has the shape of the table, with nothing missing and nothing extra."""
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == MEDIA_TYPE
        problem = ProblemDetails.model_validate_json(answer.content, strict=True)
        assert problem.status == answer.status_code
        return
    row = row_of(answer.request.method, answer.request.url.path)
    assert answer.headers["content-type"] == "application/json"
    _model(row, answer.status_code).validate_json(answer.content, strict=True)


@contextlib.asynccontextmanager
async def serving(app: JetJobs, *, root_path: str = "", **options: Any) -> AsyncIterator[Client]:
    """Serve the API of an open app on a free port of this machine. `options` are those of the client."""
    server = Server(app, root_path=root_path)
    task = asyncio.create_task(server.run_until_stopped())
    try:
        await wait_until(lambda: server.started or task.done())
        async with Client(server, **options) as client:
            yield client
    finally:
        server.stop()
        await task
