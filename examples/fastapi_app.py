"""FastAPI: the app is open while the web server runs; `/jobs/{id}` shows a job.

Web:    uvicorn examples.fastapi_app:web
Worker: jetjobs worker examples.fastapi_app:app
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from jetjobs import JetJobs, JobNotFound, JobStatus

app = JetJobs("thumbnails")


@app.task(queue="images")
async def make_thumbnail(path: str, width: int = 200) -> str:
    return f"{path}@{width}"


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """One connection for all requests of the process."""
    async with app:
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/thumbnails", status_code=202)
async def create_thumbnail(path: str, width: int = 200) -> dict[str, str]:
    handle = await make_thumbnail.enqueue(path, width)
    return {"job": handle.id}


@web.post("/previews", status_code=202)
def create_preview(path: str) -> dict[str, str]:
    """FastAPI runs a plain `def` in a thread, which has no event loop."""
    return {"job": make_thumbnail.enqueue_sync(path, width=32).id}


@web.get("/jobs/{job_id}")
async def show_job(job_id: str) -> JobStatus:
    try:
        return await app.jobs.get(job_id)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from None
