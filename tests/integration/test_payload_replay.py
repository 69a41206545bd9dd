"""Dead letters with large bodies: shown, exported, imported and replayed."""

from __future__ import annotations

import json

import pytest

from jetjobs import JetJobs, RetryPolicy
from jetjobs.admin import ReplayOutcome
from tests.support.payloads import nothing_stored, text_of
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

MB = 1_000_000


async def test_a_large_dead_letter_is_shown_exported_imported_and_replayed(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    sizes: list[int] = []

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def work(text: str) -> None:
        sizes.append(len(text))
        if len(sizes) == 1:
            raise RuntimeError("not yet")

    async with provisioned(app):
        handle = await work.enqueue(text_of(2 * MB))
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered", timeout=30)
            (letter,) = [letter async for letter in app.dead.list()]
            assert (letter.id, letter.body, letter.payload) == (handle.id, b"", f"{handle.id}.{handle.run}")
            exported = json.loads(json.dumps(await app.dead.to_json(letter)))
            assert await app.dead.delete(letter)
            assert await nothing_stored(truth)
            with pytest.raises(ValueError, match="it needs the objects"):
                await app.dead.from_json({**exported, "objects": {**exported["objects"], "other": "eA=="}})
            assert await nothing_stored(truth)
            assert await app.dead.from_json(exported)
            assert not await app.dead.from_json(exported)
            assert set(await truth.objects()) == {letter.payload}  # and no other object of the file
            again = await app.dead.get(handle.id)
            assert again is not None
            assert (await app.dead.replay(again)).outcome is ReplayOutcome.REPLAYED
            await probe.finished(1, "succeeded", timeout=30)
        assert sizes == [2 * MB] * 2
        await eventually(lambda: nothing_stored(truth), timeout=30)


async def test_a_replay_takes_over_the_object_and_an_interrupted_one_is_completed(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    fail = True

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def work(text: str) -> int:
        if fail:
            raise RuntimeError("not yet")
        return len(text)

    async with provisioned(app):
        handle = await work.enqueue(text_of(2 * MB))
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered", timeout=30)
        entry = await truth.objects()
        letter = await app.dead.get(handle.id)
        assert letter is not None
        stored = await truth.js.get_last_msg("jobs-dead", f"jobs.dead.default.work.{handle.id}")
        assert (await app.dead.replay(letter)).outcome is ReplayOutcome.REPLAYED
        assert await truth.objects() == entry  # not copied
        # As if the process had died before it removed the letter: both letter and live job exist.
        headers = {k: v for k, v in (stored.headers or {}).items() if not k.startswith("Nats-")}
        await truth.js.publish(stored.subject or "", b"", headers=headers)
        fail = False
        async with running(app.worker()):
            await probe.finished(1, "succeeded", timeout=30)
        assert await truth.objects() == entry  # the letter still needs it
        left = await app.dead.get(handle.id)
        assert left is not None
        assert await app.dead.delete(left)
        assert await nothing_stored(truth)


async def test_edited_arguments_may_be_large_and_a_job_on_another_queue_gets_its_own_body(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    sizes: list[int] = []

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def work(text: str) -> None:
        sizes.append(len(text))
        if len(text) < 2 * MB:
            raise RuntimeError("too short")

    @app.task(queue="other")
    async def elsewhere() -> None: ...

    async with provisioned(app):
        handle = await work.enqueue(text_of(MB + 400_000))
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered", timeout=30)
        letter = await app.dead.get(handle.id)
        assert letter is not None
        refused = await app.dead.replay(letter, to_queue="nowhere")
        assert refused.outcome is ReplayOutcome.REFUSED
        assert set(await truth.objects()) == {letter.payload}
        assert (await app.dead.replay(letter, to_queue="other")).outcome is ReplayOutcome.REPLAYED
        (moved,) = (await truth.objects()).values()
        assert moved["name"] != letter.payload
        assert moved["metadata"]["jetjobs.queue"] == "other"
        async with running(app.worker()):
            await probe.finished(2, "dead_lettered", timeout=30)
            letter = await app.dead.get(handle.id)
            assert letter is not None
            edited = await app.dead.replay(letter, arguments={"text": text_of(2 * MB)})
            assert edited.outcome is ReplayOutcome.REPLAYED
            await probe.finished(1, "succeeded", timeout=30)
        assert sizes == [MB + 400_000] * 2 + [2 * MB]
        await eventually(lambda: nothing_stored(truth), timeout=30)
