"""FastAPI with a worker inside the web process: one process to deploy, for small programs.

Jobs share the event loop and the memory with the requests. When the process is busy or restarts, both are.

    uvicorn examples.fastapi_worker:web
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from jetjobs import JetJobs

app = JetJobs("greetings")


@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with app:
        await app.provision()  # creates the queues, as `jetjobs worker` does
        worker = app.worker(slots=5)
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()  # jobs that run longer than `stop_timeout` are released to other workers
            await running


web = FastAPI(lifespan=lifespan)


@web.post("/greetings")
async def create_greeting(name: str) -> dict[str, str]:
    handle = await greet.enqueue(name)
    return {"greeting": await handle.result()}
