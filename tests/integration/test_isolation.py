"""Tasks in child processes: what crosses, what is stopped, and what a child's death costs."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import CallNext, Context, JetJobs, JobFailed, JobState, Settings, Task
from jetjobs.admin import CancelOutcome
from jetjobs.model.errors import ChildRaised, DefinitionError
from jetjobs.model.events import JobFinished, JobStarted
from jetjobs.model.outcome import ErrorInfo
from jetjobs.testing import drain
from jetjobs.worker.worker import Worker
from tests.conftest import MakeApp
from tests.integration import isolated_tasks as tasks
from tests.support.pids import gone, is_gone, noted, pids_in
from tests.support.probe import Probe, eventually, wait_until
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=40)


@pytest.fixture
async def app(settings_for: Callable[..., Settings]) -> AsyncIterator[JetJobs]:
    tasks.app.configure(settings_for())
    tasks.app._observers.clear()
    async with provisioned(tasks.app) as opened:
        yield opened


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


async def failure(handle: Any) -> JobFailed:
    with pytest.raises(JobFailed) as caught:
        await handle.result(SOON)
    return caught.value


async def ended(probe: Probe, outcome: str, count: int = 1) -> list[JobFinished]:
    return await probe.finished(count, outcome, timeout=40)


# Data between worker and child


async def test_arguments_and_results_keep_their_types(app: JetJobs, truth: Truth) -> None:
    order = tasks.Order(number=6, placed=datetime(2027, 1, 1, tzinfo=UTC), raw=b"ab")
    async with running(app.worker()):
        handle = await tasks.next_day.enqueue(order, timedelta(days=1))
        back = await handle.result(SOON)
        assert back == tasks.Order(number=7, placed=datetime(2027, 1, 2, tzinfo=UTC), raw=b"ab")
        assert isinstance(back, tasks.Order)
    assert (await truth.done())[handle.id]["result"]["number"] == 7
    await truth.until_empty()


async def test_a_task_in_a_child_may_return_a_flow(app: JetJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    async def passing(context: Context, call_next: CallNext) -> Any:
        return await call_next()

    async with running(app.worker()):
        assert await (await tasks.spread.enqueue(3)).result(SOON) == [0, 2, 4]
    monkeypatch.setattr(app, "_middlewares", [passing])
    async with running(app.worker()):
        assert await (await tasks.spread.enqueue(2)).result(SOON) == [0, 2]


async def test_a_task_in_a_child_enqueues_on_the_server_of_its_worker_and_is_the_parent(
    app: JetJobs, truth: Truth
) -> None:
    async with running(app.worker()):
        handle = await tasks.branch.enqueue()
        assert await handle.result(SOON) == [handle.id, handle.id]
    assert len(await truth.done()) == 2


async def test_the_running_job_is_known_in_the_child_and_children_are_reused(app: JetJobs, truth: Truth) -> None:
    async with running(app.worker(name="w1")):
        answers = []
        for _ in range(3):
            handle = await tasks.who.options(headers={"tenant": "a"}).enqueue()
            answers.append(await handle.result(SOON))
            assert answers[-1]["id"] == handle.id
        await truth.nc.publish("jobs.work.default.normal.whoami", b"{}", headers={"Nats-Msg-Id": "renamed"})
        renamed = await eventually(truth.done, where=lambda found: "renamed" in found)
        found = renamed["renamed"]["result"]
        # By its alias the job runs in the same child, and keeps the name it was enqueued with.
        assert (found["task"], found["pid"]) == ("whoami", answers[-1]["pid"])
    assert {one["parent"] for one in answers} == {os.getpid()}
    assert len({one["pid"] for one in answers}) == 1
    last = answers[-1]
    assert (last["attempt"], last["delivery"], last["worker"], last["task"]) == (1, 1, "w1", "who")
    assert last["headers"] == {"tenant": "a"}
    assert last["near"]
    assert 200 < last["remaining_s"] <= 300
    assert last["fence"] > 0
    await gone(last["pid"])


async def test_jobs_run_side_by_side_in_as_many_children_as_slots(app: JetJobs, tmp_path: Path) -> None:
    worker = app.worker(slots=2)
    async with running(worker):
        paths = [tmp_path / str(n) for n in range(2)]
        for path in paths:
            await tasks.hold.enqueue(str(path))
        pids = [pid for path in paths for pid in await pids_in(path)]
        assert len(set(pids)) == 2
        worker.stop(now=True)
    for pid in pids:
        await gone(pid)


async def test_a_failure_is_retried_and_its_history_is_that_of_the_child(app: JetJobs, truth: Truth) -> None:
    probe = Probe()
    app.observe(probe)
    async with running(app.worker()):
        handle = await tasks.fail.enqueue("no good")
        error = await failure(handle)
        assert (error.reason, error.error_type, error.text) == ("exhausted", "ValueError", "no good")
        trace = error.traceback.split("\n")
        assert re.fullmatch(r"  tests/integration/isolated_tasks\.py:\d+ in fail", trace[1])
        assert trace[2:] == ["    raise ValueError(text)", "ValueError: " + error.text]
    assert len(await ended(probe, "retried", 2)) == 2
    letter = (await truth.dead())[handle.id]
    assert letter["reason"] == "exhausted"
    assert len(probe.of(JobStarted)) == 3


async def test_lists_and_classifiers_see_the_error_itself(app: JetJobs, truth: Truth) -> None:
    probe = Probe()
    app.observe(probe)
    async with running(app.worker()):
        assert (await failure(await tasks.fatal.enqueue())).reason == "permanent"
        assert (await failure(await tasks.only_os_errors.enqueue("value"))).reason == "permanent"
        assert (await failure(await tasks.only_os_errors.enqueue("file"))).reason == "exhausted"
        assert (await failure(await tasks.known_error.enqueue("never"))).reason == "permanent"
        later = await tasks.known_error.enqueue("later")
        found = await probe.wait(JobFinished, 1, lambda e: e.job_id == later.id, 40)
    assert (found[0].outcome, found[0].retry_in_s) == ("retried", 3600.0)
    assert found[0].error is not None
    assert found[0].error.type == "tests.integration.isolated_tasks.Known"
    assert len(await truth.dead()) == 4
    assert len(await truth.jobs(lane="retry")) == 1


async def test_signals_mean_the_same_as_elsewhere(app: JetJobs, truth: Truth) -> None:
    probe = Probe()
    app.observe(probe)
    async with running(app.worker()):
        for name in ("retry", "snooze", "until"):
            await tasks.signal.enqueue(name)
        error = await failure(await tasks.signal.enqueue("reject"))
        assert (error.reason, error.text) == ("permanent", "not known")
        assert "raise {" in error.traceback  # where it was raised, in the child
        retried = (await ended(probe, "retried"))[0]
        snoozed = await ended(probe, "snoozed", 2)
    assert retried.retry_in_s == 3600.0
    assert retried.error is not None
    assert retried.error.text == "shelf locked"
    waits = sorted(event.retry_in_s for event in snoozed)
    assert waits[0] == 7200.0
    assert waits[1] == pytest.approx(3 * 3600, abs=300)
    assert len(await truth.jobs(lane="retry")) == 3


async def test_a_result_that_cannot_be_kept_ends_the_job_at_once(app: JetJobs) -> None:
    async with running(app.worker()):
        error = await failure(await tasks.not_json.enqueue())
        assert (error.reason, error.error_type) == ("permanent", "jetjobs.errors.UnstorableValue")
        for size in (500_000, 2_000_000):  # in the record, and in the object store
            assert len(await (await tasks.large.enqueue(size)).result(SOON)) == size
        probe = Probe()
        app.observe(probe)
        await tasks.silent.enqueue()
        await ended(probe, "succeeded")


async def test_middleware_is_around_it_in_the_worker_and_sees_values_and_errors(app: JetJobs) -> None:
    seen: list[Any] = []

    async def watch(job: Context, call_next: CallNext) -> Any:
        try:
            value = await call_next()
        except Exception as error:
            seen.append(error)
            raise
        seen.append(value)
        return value + 1 if isinstance(value, int) else value

    app.middleware(watch)
    try:
        async with running(app.worker()):
            order = tasks.Order(number=1, placed=datetime(2027, 1, 1, tzinfo=UTC))
            assert (await (await tasks.next_day.enqueue(order, timedelta(0))).result(SOON)).number == 2
            assert await (await tasks.take_freely.enqueue(5)).result(SOON) == 6
            await failure(await tasks.fatal.enqueue())
    finally:
        app._middlewares.remove(watch)
    assert isinstance(seen[0], tasks.Order)
    assert seen[1] == 5
    assert isinstance(seen[2], ChildRaised)
    assert isinstance(seen[2].child_error, ErrorInfo)
    assert seen[2].child_error.type == "tests.integration.isolated_tasks.Fatal"


async def test_what_a_task_prints_goes_where_the_worker_prints_and_breaks_nothing(
    app: JetJobs, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running(app.worker()):
        for text in ("one", "two"):
            assert await (await tasks.talk.enqueue(text)).result(SOON) == text
        out, err = capfd.readouterr()
    for text in ("one", "two"):
        assert f"printed {text}" in out
        assert f"no line end {text}" in out
        assert f"error {text}" in err


async def test_log_lines_come_out_of_the_workers_handlers(app: JetJobs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(app.worker()):
        handle = await tasks.log_lines.enqueue("hello")
        await handle.result(SOON)
    lines = {record.getMessage(): record for record in caplog.records}
    said = lines["said hello"]
    assert (said.name, said.levelname, said.funcName) == ("mine", "WARNING", "log_lines")
    assert said.process != os.getpid()
    assert vars(said)["colour"] == "red"
    assert "object at" in vars(said)["odd"]
    assert vars(lines["by the job"])["job_id"] == handle.id
    assert "ValueError: caught" in (lines["it failed"].exc_text or "")
    assert "not wanted" not in lines


async def test_lines_logged_between_two_jobs_are_not_taken_for_an_answer(app: JetJobs) -> None:
    async with running(app.worker()):
        pids = {await (await tasks.leave_a_thread_that_logs.enqueue()).result(SOON) for _ in range(5)}
    assert len(pids) == 1


# Children that die


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("segfault", "jetjobs.errors.ChildDied", "killed by SIGSEGV"),
        ("exit", "jetjobs.errors.ChildDied", "exited with code 7"),
        ("close", "jetjobs.errors.ChildDied", "closed its channel"),
        ("sys.exit", "SystemExit", "3"),
        ("interrupt", "KeyboardInterrupt", ""),
    ],
)
async def test_a_child_that_dies_is_an_ordinary_failure_and_the_worker_lives_on(
    how: str, kind: str, text: str, app: JetJobs, truth: Truth
) -> None:
    async with running(app.worker(slots=2)):
        dying = await tasks.die.enqueue(how)
        others = [await tasks.plain.enqueue(n) for n in range(5)]
        error = await failure(dying)
        assert (error.reason, error.error_type) == ("exhausted", kind)
        assert text in error.text
        assert [await handle.result(SOON) for handle in others] == list(range(5))
        assert await (await tasks.take_freely.enqueue(3)).result(SOON) == 3  # there is another child
    await truth.until_empty()
    assert set(await truth.dead()) == {dying.id}


async def test_a_job_that_crashed_its_child_is_retried_and_counts_no_crash(app: JetJobs, truth: Truth) -> None:
    probe = Probe()
    app.observe(probe)
    async with running(app.worker()):
        handle = await tasks.crash_once.enqueue()
        assert await handle.result(SOON) == 1  # the second attempt is a new message, delivered once
        retried = (await ended(probe, "retried"))[0]
    assert retried.error is not None
    assert retried.error.type == "jetjobs.errors.ChildDied"
    assert (await truth.done())[handle.id]["attempt"] == 2
    await truth.until_empty()


async def test_sys_exit_in_an_async_task_ends_the_attempt_and_not_the_child(app: JetJobs) -> None:
    async with running(app.worker(slots=1)):
        before = (await (await tasks.who.enqueue()).result(SOON))["pid"]
        assert (await failure(await tasks.exit_on_the_loop.enqueue())).error_type == "SystemExit"
        assert (await (await tasks.who.enqueue()).result(SOON))["pid"] == before


@pytest.mark.parametrize(("length", "seconds"), [(1, 0), (4, 0), (12, 60), (5000, 60)])
async def test_garbage_in_the_channel_costs_the_attempt_and_nothing_hangs(
    length: int, seconds: float, app: JetJobs
) -> None:
    async with running(app.worker(slots=1)):
        error = await failure(await tasks.garbage.enqueue(length, seconds))
        assert error.error_type == "jetjobs.errors.ChildDied"
        assert "garbage" in error.text
        assert await (await tasks.take_freely.enqueue(3)).result(SOON) == 3


@pytest.mark.parametrize(("how", "good"), [("return", True), ("raise", True), ("die", False)])
async def test_a_copy_that_a_task_forked_does_not_answer(how: str, good: bool, app: JetJobs, marker: Path) -> None:
    async with running(app.worker(slots=1)):
        child = (await (await tasks.who.enqueue()).result(SOON))["pid"]
        handle = await tasks.fork.enqueue(str(marker), how)
        if good:
            assert await handle.result(SOON) == child
            assert (await pids_in(marker))[0] != child
        else:
            assert "exited with code 5" in (await failure(handle)).text
        after = [(await (await tasks.who.enqueue()).result(SOON))["pid"] for _ in range(3)]
        assert (set(after) == {child}) is good


async def test_a_copy_that_lingers_does_not_hide_the_end_of_the_child(app: JetJobs) -> None:
    async with running(app.worker(slots=1)):
        error = await failure(await tasks.fork_and_linger.enqueue())
        assert (error.error_type, "exited with code 5" in error.text) == (
            "jetjobs.errors.ChildDied",
            True,
        )


async def test_a_memory_hog_fails_and_others_are_not_bound_by_its_limit(app: JetJobs) -> None:
    async with running(app.worker(slots=1)):
        assert await (await tasks.take.enqueue(2**20)).result(SOON) == 2**20
        error = await failure(await tasks.take.enqueue(2**30))
        assert (error.error_type, error.text) == ("MemoryError", "the memory_limit of task 'take' is 64 MiB")
        assert error.traceback.endswith("\nMemoryError\nthe memory_limit of task 'take' is 64 MiB")
        assert await (await tasks.take_freely.enqueue(128 * 2**20)).result(SOON) == 128 * 2**20


# Children that are stopped


async def test_a_timeout_kills_a_loop_that_never_yields(app: JetJobs, truth: Truth, marker: Path) -> None:
    async with running(app.worker(slots=1)):
        handle = await tasks.spin.enqueue(str(marker))
        error = await failure(handle)
        assert (error.reason, error.error_type) == ("exhausted", "jetjobs.errors.JobTimeout")
        await gone((await pids_in(marker))[0])
        assert await (await tasks.take_freely.enqueue(3)).result(SOON) == 3
    await truth.until_empty()


async def test_a_stop_gives_the_job_back_and_kills_the_child_with_what_it_started(
    app: JetJobs, truth: Truth, marker: Path
) -> None:
    worker = app.worker(slots=1)
    async with running(worker):
        await tasks.hold_with_subprocess.enqueue(str(marker))
        pids = await pids_in(marker, 2)
        worker.stop(now=True)
    assert len(await truth.jobs()) == 1
    await truth.until_idle()
    assert worker.cut_short == 1
    for pid in pids:
        await gone(pid)


@pytest.mark.parametrize("task", [tasks.tidy, tasks.tidy_plain])
async def test_a_cancelled_job_may_clean_up_in_its_child(
    app: JetJobs, truth: Truth, tmp_path: Path, marker: Path, task: Task[..., None]
) -> None:
    tidied = tmp_path / "tidied"
    async with running(app.worker(slots=1)):
        handle = await task.enqueue(str(marker), str(tidied))
        pid = (await pids_in(marker))[0]
        answer = await app.jobs.cancel(handle.id)
        assert (answer.outcome, answer.detail) == (CancelOutcome.CANCELLED, "it was stopped while it ran")
        assert await pids_in(tidied) == [pid]
        await gone(pid)  # the signal might have come late: it gets no other job
        assert await (await tasks.take_freely.enqueue(3)).result(SOON) == 3
    record = (await truth.done())[handle.id]
    assert (record["state"], record["how"], await truth.dead()) == ("cancelled", "stopped", {})
    await truth.until_empty()


async def test_a_cancel_in_the_midst_of_a_question_leaves_question_and_answer_in_step(
    app: JetJobs, tmp_path: Path, marker: Path
) -> None:
    stored = tmp_path / "stored"
    async with running(app.worker(slots=1)):
        handle = await tasks.save_all_the_time.enqueue(str(marker), str(stored))
        await pids_in(marker)
        answer = await app.jobs.cancel(handle.id)
        assert (answer.outcome, answer.state) == (CancelOutcome.ENDED, JobState.SUCCEEDED)
        assert await handle.result(SOON) == [-5, -5]
        last, saved = await pids_in(stored, 2)
        assert last in (saved, saved - 1)  # interrupted after it was stored, or before


async def test_a_cancel_in_the_midst_of_a_log_line_does_not_garble_the_channel(app: JetJobs, marker: Path) -> None:
    async with running(app.worker(slots=1)):
        handle = await tasks.log_all_the_time.enqueue(str(marker))
        await pids_in(marker)
        answer = await app.jobs.cancel(handle.id)
        assert (answer.outcome, answer.state) == (CancelOutcome.ENDED, JobState.SUCCEEDED)
        assert await handle.result(SOON) == "heard"


async def test_a_job_cancelled_before_its_child_has_begun_with_it_does_not_begin(
    app: JetJobs, truth: Truth, marker: Path
) -> None:
    worker = app.worker(slots=1)
    async with running(worker):
        assert await (await tasks.take_freely.enqueue(3)).result(SOON) == 3  # a child is there
        handle = await tasks.never_begins.enqueue(str(marker), list(range(1_000_000)))
        await wait_until(lambda: any(attempt.stop_child is not None for attempt in worker.leases.held))
        answer = await app.jobs.cancel(handle.id)
        assert (answer.outcome, answer.detail) == (CancelOutcome.CANCELLED, "it was stopped while it ran")
    assert noted(marker) == []
    assert (await truth.done())[handle.id]["how"] == "stopped"


async def test_a_job_cancelled_in_its_middleware_leaves_the_next_job_of_its_child_alone(
    app: JetJobs, truth: Truth, marker: Path
) -> None:
    after = asyncio.Event()

    async def slow(context: Context, call_next: CallNext) -> Any:
        value = await call_next()
        if context.task == "take_freely":
            after.set()
            await asyncio.Event().wait()
        return value

    app._middlewares.append(slow)
    try:
        async with running(app.worker(slots=2)):
            handle = await tasks.take_freely.enqueue(3)
            await asyncio.wait_for(after.wait(), 40)
            other = await tasks.tidy_plain.enqueue(str(marker), f"{marker}.tidied")
            pid = (await pids_in(marker))[0]
            answer = await app.jobs.cancel(handle.id)
            assert (answer.outcome, answer.detail) == (CancelOutcome.CANCELLED, "it was stopped while it ran")
            assert not is_gone(pid)
            assert noted(Path(f"{marker}.tidied")) == []
            assert (await app.jobs.cancel(other.id)).outcome is CancelOutcome.CANCELLED
    finally:
        app._middlewares.remove(slow)


async def test_a_lease_lost_while_the_child_is_asked_to_stop_kills_it_at_once(
    app: JetJobs, truth: Truth, marker: Path
) -> None:
    worker = app.worker(slots=1)
    async with running(worker):
        await tasks.stubborn.enqueue(str(marker))
        pid = (await pids_in(marker))[0]
        (attempt,) = worker.leases.held
        attempt.cancel_running()
        await pids_in(Path(f"{marker}.heard"))
        worker.leases.lose(attempt)
        await gone(pid)
        worker.stop(now=True)
    assert len(await truth.jobs()) == 1
    assert (await truth.done(), await truth.dead()) == ({}, {})


async def test_a_lost_lease_kills_the_child_and_touches_nothing(app: JetJobs, truth: Truth, marker: Path) -> None:
    worker = app.worker(slots=1)
    async with running(worker):
        await tasks.hold.enqueue(str(marker))
        pid = (await pids_in(marker))[0]
        for attempt in worker.leases.held:
            worker.leases.lose(attempt)
        await gone(pid)
        worker.stop(now=True)
    assert len(await truth.jobs()) == 1
    assert await truth.dead() == {}


async def test_a_start_that_outlasts_the_time_limit_is_kept_for_the_next_attempt(app: JetJobs) -> None:
    """Else a task with a limit shorter than the start of a child could never succeed."""
    from jetjobs.worker.isolation.pool import ProcessPool

    children = ProcessPool(1, app, app.classifiers)
    try:
        waiting = asyncio.create_task(children._take())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        child = await asyncio.wait_for(children._take(), 40)
        assert child.alive
        assert not children._starting
    finally:
        await children.close()
    assert not child.alive


# The first child


async def test_children_start_with_the_first_job_that_needs_one(app: JetJobs) -> None:
    worker = app.worker(slots=2)
    async with running(worker):
        await eventually(lambda: ready(worker))
        pool = worker._jobs.executor._children
        assert not pool._idle
        assert not pool._starting
        assert (await (await tasks.who.enqueue()).result(SOON))["parent"] == os.getpid()
        assert len(pool._idle) == 1


@pytest.mark.alone
async def test_a_drain_of_an_app_with_an_isolated_task_is_quick(
    app: JetJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def quick() -> None: ...

    async def start(setup: dict[str, Any]) -> None:
        raise AssertionError("no job needs a child")

    monkeypatch.setattr("jetjobs.worker.isolation.process.ChildProcess.start", start)
    took = []
    try:
        for _ in range(3):
            await quick.enqueue()
            began = time.perf_counter()
            assert len((await drain(app)).succeeded) == 1
            took.append(time.perf_counter() - began)
    finally:
        del app.tasks["quick"]
    assert min(took) < 0.3


async def test_a_task_that_a_fresh_process_does_not_find_fails_its_attempts_and_says_why(
    app: JetJobs, truth: Truth
) -> None:
    @app.task(isolation="process", retry=tasks.QUICK)
    def local() -> None: ...

    try:
        async with running(app.worker(slots=1)):
            handle = await local.enqueue()
            error = await failure(handle)
            assert (error.reason, error.error_type) == ("exhausted", "jetjobs.errors.DefinitionError")
            assert error.text == (
                "task 'local' has isolation='process' but is missing in a process that imports the app: "
                "declare it at the top level of a module that the app's module imports"
            )
            assert await (await tasks.take_freely.enqueue(3)).result(SOON) == 3
        assert set(await truth.dead()) == {handle.id}
    finally:
        del app.tasks["local"]


async def test_an_app_that_a_child_cannot_import_fails_attempts_with_the_traceback_of_the_child(
    app: JetJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("import nosuch\n")
    monkeypatch.syspath_prepend(tmp_path)
    worker = app.worker(slots=1)
    pool = worker._jobs.executor._children
    location = pool._make_setup()["location"]
    assert pool._setup is not None
    pool._setup["location"] = {**location, "others": [*location["others"], "only_here"]}
    async with running(worker):
        error = await failure(await tasks.fail.enqueue("never runs"))
    assert error.error_type == "jetjobs.errors.ChildDied"
    assert error.text == (
        "a child process could not import the app: ModuleNotFoundError: No module named 'nosuch'"
    )
    assert "only_here.py:1 in <module>\n    import nosuch\n" in error.traceback


async def test_a_forgotten_await_in_a_child_fails_the_attempt(app: JetJobs) -> None:
    async with running(app.worker(slots=1)):
        error = await failure(await tasks.forgets.enqueue(returned=False))
        assert error.text == "coroutine 'never' was never awaited: did you forget await?"
        assert "isolated_tasks.py:" in error.traceback.split("\n")[1]
        error = await failure(await tasks.forgets.enqueue(returned=True))
        assert error.text == "task 'forgets' returned a coroutine: did you forget await?"
        assert await (await tasks.take_freely.enqueue(3)).result(SOON) == 3


async def test_an_app_that_no_module_has_by_name_is_refused_at_the_start(make_app: MakeApp) -> None:
    app = make_app()

    @app.task(isolation="process")
    def local() -> None: ...

    async with provisioned(app):
        with pytest.raises(DefinitionError, match="cannot find the app"):
            await asyncio.wait_for(app.worker().run(), 40)


async def test_children_are_not_started_for_queues_that_need_none(app: JetJobs) -> None:
    await app.provision(["other"])
    worker = app.worker(queues={"other": None})
    async with running(worker):
        await eventually(lambda: ready(worker))
        assert worker._jobs.executor._children._idle == []


async def ready(worker: Worker) -> bool:
    return worker.ready


async def test_an_idle_child_that_was_killed_is_replaced_without_a_failure(app: JetJobs) -> None:
    async with running(app.worker(slots=1)):
        first = (await (await tasks.who.enqueue()).result(SOON))["pid"]
        os.kill(first, 9)
        await gone(first)
        assert (await (await tasks.who.enqueue()).result(SOON))["pid"] != first
