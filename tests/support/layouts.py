"""Streams as another version of jetjobs would have created them."""

from __future__ import annotations

from tests.support.server import Truth

STREAMS = ("jobs-dead", "jobs-work-default")


async def change_layout(truth: Truth, version: str) -> None:
    """Give provisioned streams the layout version, and the lane names of version 1: `back` and `tick`."""
    await truth.api("CONSUMER.DELETE.jobs-work-default.returned")
    for stream in STREAMS:
        config = (await truth.api(f"STREAM.INFO.{stream}"))["config"]
        config["metadata"]["jetjobs.wire"] = version
        config["subjects"] = [
            subject.replace(".returned.", ".back.").replace(".mark.", ".tick.") for subject in config["subjects"]
        ]
        answer = await truth.api(f"STREAM.UPDATE.{stream}", config)
        assert "error" not in answer, answer
    lane = {"durable_name": "back", "ack_policy": "explicit", "filter_subject": "jobs.work.default.back.>"}
    answer = await truth.api(
        "CONSUMER.CREATE.jobs-work-default.back.jobs.work.default.back.>",
        {"stream_name": "jobs-work-default", "config": lane},
    )
    assert "error" not in answer, answer
