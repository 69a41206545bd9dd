"""Test helpers for applications that use jetjobs, on a real server. See docs/how-to/testing.md."""

from __future__ import annotations

from jetjobs.testing.clock import Clock
from jetjobs.testing.drain import Drained, JobsFailed, drain
from jetjobs.testing.enqueued import EnqueuedJob, assert_enqueued, enqueued, refute_enqueued
from jetjobs.testing.inline import Inline, run_inline
from jetjobs.testing.server import on_server, working

__all__ = [
    "Clock",
    "Drained",
    "EnqueuedJob",
    "Inline",
    "JobsFailed",
    "assert_enqueued",
    "drain",
    "enqueued",
    "on_server",
    "refute_enqueued",
    "run_inline",
    "working",
]
