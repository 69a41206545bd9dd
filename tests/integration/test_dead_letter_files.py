"""Export dead letters to files and import them, with invalid lines."""

from __future__ import annotations

import base64
import io
import json

import pytest

from jetjobs import JetJobs
from jetjobs.admin import ImportReport
from jetjobs.model.views.dead_letter import DeadLetterFilter
from tests.support.letters import bury, letter_of
from tests.support.server import Truth
from tests.support.workers import provisioned


async def test_letters_are_exported_and_imported_completely(app: JetJobs, truth: Truth) -> None:
    async with app:
        await app.provision(["default"])
        ids = await bury(app, "work", [b'{"n":%d}' % i for i in range(300)], headers={"X-Tenant": "acme"})
        before = await truth.dead()
        file = io.StringIO()
        assert await app.dead.export_to(file) == 300
        assert await app.dead.export_to(io.StringIO(), DeadLetterFilter(task="nothing")) == 0
        async for letter in app.dead.list():
            assert await app.dead.delete(letter)
        assert await truth.dead() == {}
        assert await app.dead.import_from(io.StringIO(file.getvalue())) == ImportReport(300, 0, ())
        assert await app.dead.import_from(io.StringIO(file.getvalue())) == ImportReport(0, 300, ())
        after = await truth.dead()
        assert set(after) == set(ids)
        for name in ("Jetjobs-Cause", "Jetjobs-Run", "Jetjobs-Source", "X-Tenant"):
            assert {k: (v["body"], v["headers"][name]) for k, v in after.items()} == {
                k: (v["body"], v["headers"][name]) for k, v in before.items()
            }


async def test_a_body_in_the_object_store_is_exported_too(app: JetJobs) -> None:
    async with app:
        await app.provision(["default"])
        body = b'{"text":"%b"}' % (b"x" * 3_000_000)
        await app.jetstream.payloads.put("large", body, {})
        (job_id,) = await bury(app, "work", [b""], payload="large")
        letter = await letter_of(app, job_id)
        line = json.dumps(await app.dead.to_json(letter))
        assert await app.dead.delete(letter)
        gone = json.loads(line)
        gone["objects"]["large"] = None  # it was already deleted at the export
        assert await app.dead.from_json(json.loads(line))
        assert await app.jetstream.payloads.get("large") == body
        await app.jetstream.payloads.delete("large")
        assert (await app.dead.to_json(await letter_of(app, job_id)))["objects"] == {"large": None}
        assert await app.dead.delete(await letter_of(app, job_id))
        assert await app.dead.from_json(gone)


async def test_an_import_does_not_overwrite_an_object_of_a_live_job(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work(text: str) -> None: ...

    async with provisioned(app):
        await app.jetstream.payloads.put("large", b'{"text":"new"}', {})
        await work.options(job_id="mine").enqueue("x")
        value = {
            "subject": "jobs.dead.default.work.mine",
            "headers": {"Jetjobs-Payload": "large"},
            "body": "",
            "objects": {"large": base64.b64encode(b"old").decode()},
        }
        with pytest.raises(ValueError, match="a live job with this id"):
            await app.dead.from_json(value)
        assert await app.jetstream.payloads.get("large") == b'{"text":"new"}'
        assert await truth.dead() == {}


async def test_an_invalid_line_is_reported_by_its_number_and_the_others_are_imported(
    app: JetJobs, truth: Truth
) -> None:
    good = {"headers": {"Jetjobs-Run": "abc", "Jetjobs-Cause": "{}"}, "body": "e30=", "objects": {}}
    lines = [
        json.dumps({**good, "subject": "jobs.dead.default.work.first"}),
        "",
        json.dumps({**good, "subject": "jobs.dead.default.work.first", "headers": {"Nats-Rollup": "all"}}),
        "no json",
        json.dumps({**good, "subject": "jobs.dead.default.work.other", "objects": {"foreign": "e30="}}),
        json.dumps({**good, "subject": "jobs.dead.default.work.second"}),
    ]
    async with app:
        await app.provision(["default"])
        report = await app.dead.import_from(io.StringIO("\n".join(lines)))
        assert (report.imported, report.already_there) == (2, 0)
        assert [number for number, _ in report.problems] == [3, 4, 5]
        assert set(await truth.dead()) == {"first", "second"}
        assert await truth.subjects("OBJ_jobs-payloads", "$O.jobs-payloads.>") == {}
