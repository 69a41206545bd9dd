"""Read the state of the server with plain nats-py, without jetjobs' own code."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from jetjobs import JetJobs, Settings
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.settings import build_settings
from tests.support.probe import eventually


def server_settings(url: str, **groups: Any) -> Settings:
    """Settings for a server, with namespace `jobs` whatever the name of the app."""
    defaults: dict[str, dict[str, Any]] = {"nats": {"url": url}, "queues": {"namespace": "jobs"}}
    return build_settings(
        {**groups, **{name: {**ours, **groups.get(name, {})} for name, ours in defaults.items()}}
    )


class Truth:
    """A plain nats-py connection, independent of the app under test."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.js = nc.jetstream()

    @classmethod
    async def connect(cls, url: str) -> Truth:
        return cls(await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1))

    async def close(self) -> None:
        await self.nc.close()

    async def api(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        for _ in range(20):  # tests restart the server
            try:
                reply = await self.nc.request(f"$JS.API.{subject}", json.dumps(body or {}).encode(), timeout=1)
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                continue
            answer: dict[str, Any] = json.loads(reply.data)
            return answer
        raise AssertionError(f"no answer to {subject}")

    async def subjects(self, stream: str, filter_subject: str = ">") -> dict[str, int]:
        """The number of messages per subject."""
        found: dict[str, int] = {}
        while True:
            body = {"subjects_filter": filter_subject, "offset": len(found)}
            answer = await self.api(f"STREAM.INFO.{stream}", body)
            if "error" in answer:
                raise AssertionError(answer["error"])
            page = answer["state"].get("subjects") or {}
            found.update(page)
            if not page or len(found) >= answer.get("total", len(found)):
                return found

    async def jobs(self, queue: str = "default", lane: str = "*") -> list[str]:
        """The subjects of the jobs in a queue's work stream, without marks."""
        found = await self.subjects(f"jobs-work-{queue}", f"jobs.work.{queue}.{lane}.>")
        return sorted(subject for subject in found if ".mark." not in subject)

    async def until_empty(self, queue: str = "default", timeout: float = 15.0) -> None:
        """Wait until the queue has no jobs. A worker does not wait for its acks, so the last may arrive later."""
        await eventually(lambda: self.jobs(queue), timeout, where=lambda found: found == [])

    async def until_idle(self, lane: str = "normal", queue: str = "default") -> None:
        """Wait until the lane has no unacked jobs; see `until_empty`."""
        await eventually(lambda: self.consumer(lane, queue), where=lambda found: found["num_ack_pending"] == 0)

    async def _last(self, stream: str, subjects: Iterable[str]) -> AsyncIterator[tuple[str, RawStreamMsg]]:
        """The last message of each subject, without those removed since the subjects were listed."""
        for subject in subjects:
            with contextlib.suppress(NotFoundError):
                yield subject, await self.js.get_last_msg(stream, subject)

    async def done(self, queue: str = "default") -> dict[str, dict[str, Any]]:
        """The records of the done bucket by job id."""
        bucket = f"jobs-done-{queue}"
        subjects = await self.subjects(f"KV_{bucket}", f"$KV.{bucket}.>")
        records = {}
        async for subject, message in self._last(f"KV_{bucket}", subjects):
            records[subject.rsplit(".", 1)[1]] = json.loads(message.data or b"{}")
        return records

    async def dead(self) -> dict[str, dict[str, Any]]:
        """Dead letters by job id: body, headers, when it was stored, and the fields of the cause."""
        letters = {}
        async for subject, message in self._last("jobs-dead", await self.subjects("jobs-dead", "jobs.dead.>")):
            headers = message.headers or {}
            cause = json.loads(headers.get("Jetjobs-Cause", "{}"))
            letters[subject.rsplit(".", 1)[1]] = {
                "subject": subject,
                "body": message.data or b"",
                "headers": headers,
                "stored_at": message.time,
                **cause,
            }
        return letters

    async def objects(self) -> dict[str, dict[str, Any]]:
        """The entries of the object store by name, including deleted ones."""
        entries = {}
        subjects = await self.subjects("OBJ_jobs-payloads", "$O.jobs-payloads.M.>")
        async for _, message in self._last("OBJ_jobs-payloads", subjects):
            entry = json.loads(message.data or b"{}")
            entries[entry["name"]] = entry
        return entries

    async def chunks(self) -> dict[str, int]:
        """The number of chunks in the object store per written object, by its nuid."""
        found = await self.subjects("OBJ_jobs-payloads", "$O.jobs-payloads.C.>")
        return {subject.rsplit(".", 1)[1]: count for subject, count in found.items()}

    async def consumer(self, lane: str = "normal", queue: str = "default") -> dict[str, Any]:
        return await self.api(f"CONSUMER.INFO.jobs-work-{queue}.{lane}")

    async def has_stream(self, name: str) -> bool:
        try:
            await self.js.stream_info(name)
        except NotFoundError:
            return False
        return True


@contextlib.asynccontextmanager
async def server_of(folder: Path, config: str) -> AsyncIterator[tuple[JetJobs, Truth]]:
    """Run a server with this configuration. Yields an app for it, not opened, and a Truth."""
    file = folder / "nats.conf"
    file.write_text(config)
    with EmbeddedServer(extra=("-c", str(file))) as server:
        truth = await Truth.connect(server.url)
        yield JetJobs("test", settings=server_settings(server.url)), truth
        await truth.close()
