"""The short forms of declarations: retry=3, schedules as decorators, injected arguments, enqueueing by name."""

# No `from __future__ import annotations`: tasks are declared inside tests.

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Annotated, Any, cast

import pytest

from jetjobs import (
    INJECTED,
    Context,
    Depends,
    InvalidArguments,
    JetJobs,
    JobHandle,
    JobRequest,
    RetryPolicy,
    Router,
)
from jetjobs.errors import DefinitionError
from jetjobs.model.job import Job
from jetjobs.testing import run_inline

MINUTE = timedelta(minutes=1)


@pytest.fixture
def app() -> JetJobs:
    return JetJobs("test", queue="own")


@pytest.fixture
def sent(app: JetJobs) -> list[JobRequest[Any]]:
    """The requests that the app would store."""
    requests: list[JobRequest[Any]] = []

    async def outlet(request: JobRequest[Any]) -> JobHandle[Any]:
        requests.append(request)
        return JobHandle("u1", "own", request.task.name, run="r", stores_result=True, duplicate=False)

    app._session = cast(Any, SimpleNamespace(enqueuer=SimpleNamespace(enqueue=outlet)))
    return requests


async def greet(name: str) -> str:
    return f"hello {name}"


# Attempts


@pytest.mark.parametrize("options", [{"retry": 3}, {"max_attempts": 3}, {"retry": RetryPolicy(max_attempts=3)}])
def test_a_number_of_attempts_is_a_policy(app: JetJobs, options: dict[str, Any]) -> None:
    assert app.task(**options)(greet).retry == RetryPolicy(max_attempts=3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retry": 3, "max_attempts": 3}, "task 'greet': give retry or max_attempts, not both"),
        ({"retry": 0}, "task 'greet': retry: max_attempts must be a whole number from 1 to 999,999,999"),
        ({"max_attempts": True}, "task 'greet': max_attempts must be a whole number from 1 to 999,999,999"),
        ({"retry": "3"}, "task 'greet': retry must be a RetryPolicy or a number of attempts, not '3'"),
        ({"retry": True}, "task 'greet': retry must be a RetryPolicy or a number of attempts, not True"),
        ({"priority": "urgent"}, "task 'greet': invalid priority 'urgent': use high, normal, low"),
    ],
)
def test_an_invalid_option_of_a_task_is_refused_and_nothing_is_declared(
    app: JetJobs, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(DefinitionError) as caught:
        app.task(**options)(greet)
    assert str(caught.value) == text
    assert not app.tasks


def test_the_policy_of_a_job_is_a_whole_policy(app: JetJobs) -> None:
    with pytest.raises(DefinitionError, match="retry must be a RetryPolicy, not int") as caught:
        app.task(greet).options(retry=cast(Any, 3))
    assert caught.value.hint == "to change only the number of attempts of this job, use max_attempts"


def test_an_unknown_priority_of_a_job_or_schedule_is_refused(app: JetJobs) -> None:
    task = app.task(greet)
    unknown = cast(Any, "urgent")
    with pytest.raises(DefinitionError, match="invalid priority 'urgent': use high, normal, low"):
        task.options(priority=unknown)
    with pytest.raises(DefinitionError, match="schedule 'greet': invalid priority 'urgent'"):
        task.every("5m", args={"name": "Ada"}, priority=unknown)
    assert not app.declared_schedules


# Times


async def test_enqueue_in_and_enqueue_at_are_options_of_the_job(app: JetJobs, sent: list[JobRequest[Any]]) -> None:
    task = app.task(greet)
    when = datetime(2030, 1, 1, tzinfo=UTC)
    await task.enqueue_in(5, "Ada")
    await task.enqueue_at(when, name="Ada")
    assert [request.options for request in sent] == [{"delay": 5}, {"run_at": when}]
    assert [request.body for request in sent] == [b'{"name":"Ada"}'] * 2


async def test_enqueue_at_needs_a_time_zone(app: JetJobs, sent: list[JobRequest[Any]]) -> None:
    task = app.task(greet)
    with pytest.raises(DefinitionError, match="run_at has no time zone"):
        await task.enqueue_at(datetime(2030, 1, 1), "Ada")
    with pytest.raises(DefinitionError, match="run_at must be a datetime, not str"):
        await task.enqueue_at(cast(Any, "tomorrow"), "Ada")
    assert not sent


# Schedules as decorators


@pytest.mark.parametrize("make", [lambda: JetJobs("test"), Router])
def test_cron_and_every_stack_on_a_task(make: Callable[[], Router]) -> None:
    where = make()

    @where.cron("0 9 * * 1-5", tz="Europe/Berlin", name="mornings")
    @where.every("5m", jitter=10)
    @where.task(queue="reports")
    async def report() -> None: ...

    assert where.tasks == {"report": report}
    assert where.declared_schedules["mornings"].cron == "0 9 * * 1-5"
    assert where.declared_schedules["mornings"].queue == "reports"
    assert where.declared_schedules["report"].every == 5 * MINUTE


@pytest.mark.parametrize(
    ("decorator", "form"),
    [
        (lambda app: app.cron("@daily"), "write @app.cron('@daily') above @app.task, not below it"),
        (lambda app: app.every(60), "write @app.every(60) above @app.task, not below it"),
    ],
)
def test_a_schedule_below_the_task_is_refused_with_the_right_form(app: JetJobs, decorator: Any, form: str) -> None:
    with pytest.raises(DefinitionError, match="was used on 'greet', which is not a task yet") as caught:
        app.task(decorator(app)(greet))
    assert caught.value.hint == form
    assert not app.tasks
    assert not app.declared_schedules


def test_a_schedule_without_its_rule_is_refused_with_the_right_form(app: JetJobs) -> None:
    with pytest.raises(DefinitionError, match=r"@app.cron needs its rule") as caught:
        cast(Any, app).cron(app.task(greet))
    assert caught.value.hint == "write @app.cron(...) above @app.task, not below it"


def test_a_task_of_another_app_is_not_scheduled_here(app: JetJobs) -> None:
    task = JetJobs("other").task(greet)
    with pytest.raises(DefinitionError, match="task 'greet' belongs to another app or router") as caught:
        app.every("5m")(task)
    assert caught.value.hint == "use greet.every(...)"


# Injected arguments


class Pool:
    name = "made"


def make_pool(ctx: Context) -> Pool:
    assert ctx.task
    return Pool()


def nested(pool: Pool = Depends(make_pool)) -> str:
    return f"nested {pool.name}"


async def test_a_dependency_may_be_a_default_value(app: JetJobs) -> None:
    @app.task
    async def use(n: int, pool: Pool = Depends(make_pool), text: str = Depends(nested)) -> list[str]:
        return [pool.name, text] * n

    assert use.signature.names == ("n",)
    assert await run_inline(use, 1) == ["made", "nested made"]
    mine = Pool()
    mine.name = "given"
    assert await run_inline(use, 1, pool=mine) == ["given", "nested made"]
    assert await use(1, mine, "text") == ["given", "text"]


async def test_a_task_never_receives_the_marker_of_a_dependency(app: JetJobs) -> None:
    ran: list[Any] = []

    @app.task
    def plain(pool: Pool = Depends(make_pool)) -> None:
        ran.append(pool)

    @app.task
    async def annotated(pool: Annotated[Pool, Depends(make_pool)] = INJECTED, ctx: Context = INJECTED) -> None:
        ran.append(pool)

    with pytest.raises(InvalidArguments, match="pool is injected by the worker; a direct call must pass it"):
        plain()
    with pytest.raises(InvalidArguments, match="ctx, pool is injected by the worker"):
        await annotated()
    with pytest.raises(InvalidArguments, match="pool is injected by the worker and cannot be passed"):
        plain.bind(pool=Pool())
    assert not ran


async def test_a_context_is_injected_by_its_type(app: JetJobs) -> None:
    @app.task
    async def first(ctx: Context, n: int) -> list[Any]:
        return [ctx.task, ctx.attempt, n]

    @app.task
    def last(n: int, ctx: Context | None = None) -> str | None:
        return ctx.task if ctx is not None else None

    assert first.signature.names == last.signature.names == ("n",)
    assert first.bind(3).body == b'{"n":3}'  # type: ignore[call-arg, arg-type]
    assert await run_inline(cast(Any, first), 3) == ["first", 1, 3]
    assert await run_inline(last, 3) == "last"
    with pytest.raises(InvalidArguments, match="ctx is injected by the worker and cannot be passed"):
        last.bind(3, ctx=None)
    own = Context(Job("id", "mine", "q", "normal", b""), "w", 1, 1, math.inf)
    assert await first(own, 7) == ["mine", 1, 7]
    assert last(7, own) == "mine"
    assert last(7) is None
    assert await run_inline(last, 3, ctx=own) == "mine"


def test_a_context_does_not_change_the_fingerprint_of_the_arguments(app: JetJobs) -> None:
    async def plain(n: int) -> None: ...

    async def with_context(n: int, ctx: Context) -> None: ...

    one = app.task(name="a")(plain).signature.fingerprint
    assert JetJobs("other").task(name="a")(with_context).signature.fingerprint == one


def test_an_isolated_task_takes_a_context_but_no_dependency(app: JetJobs) -> None:
    def with_context(ctx: Context) -> None: ...

    def with_pool(pool: Pool = Depends(make_pool)) -> None: ...

    assert not app.task(isolation="process")(with_context).direct
    with pytest.raises(DefinitionError, match="dependencies cannot be passed to a child process"):
        app.task(isolation="process")(with_pool)


# By name


async def test_a_task_is_enqueued_by_name(app: JetJobs, sent: list[JobRequest[Any]]) -> None:
    app.task(queue="greetings")(greet)
    await app.enqueue("greet", {"name": "Ada"}, key="k")
    await app.enqueue("send_email", {"to": ["ada@example.org"], "copies": 2}, delay="5m")
    await app.enqueue("cleanup")
    known, foreign, bare = sent
    assert (known.task.queue, known.body, known.options) == ("greetings", b'{"name":"Ada"}', {"key": "k"})
    assert (foreign.task.queue, foreign.task.name) == ("own", "send_email")
    assert foreign.body == b'{"to":["ada@example.org"],"copies":2}'
    assert (bare.body, bare.options) == (b"{}", {})


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (("greet", {"name": 7}), InvalidArguments, "task 'greet': name: Input should be a valid string"),
        (("mail", {"at": datetime(2030, 1, 1)}), InvalidArguments, "task 'mail': at: a datetime has no JSON form"),
        (("mail", {"to": [{"id": b"x"}]}), InvalidArguments, "task 'mail': to.0.id: a bytes has no JSON form"),
        (("mail", {"rate": math.nan}), InvalidArguments, "task 'mail': rate: nan has no JSON form"),
        (("mail", {"by": {1: "x"}}), InvalidArguments, "task 'mail': by.1: keys must be text"),
        (("mail", {"text": "\ud800"}), InvalidArguments, "task 'mail': text: has an unpaired surrogate"),
        (("mail", {"all": CYCLE}), InvalidArguments, "task 'mail': the arguments are nested too deeply"),
        (("mail", {"n": 10**5000}), InvalidArguments, "task 'mail': Exceeds the limit"),
        (("mail", ["ada"]), DefinitionError, "args must be a Mapping, not list"),
        (("a.b", {}), DefinitionError, "invalid task name 'a.b'"),
        ((7, {}), DefinitionError, "the first argument must be the name of a task, not 7"),
    ],
)
async def test_what_cannot_be_enqueued_by_name_is_refused_and_nothing_is_sent(
    app: JetJobs, sent: list[JobRequest[Any]], call: Any, kind: type[Exception], text: str
) -> None:
    app.task(greet)
    with pytest.raises(kind) as caught:
        await app.enqueue(*call)
    assert str(caught.value).startswith(text)
    assert not sent


async def test_arguments_as_options_are_refused_with_the_right_form(
    app: JetJobs, sent: list[JobRequest[Any]]
) -> None:
    with pytest.raises(DefinitionError, match="unknown option 'to'") as caught:
        await cast(Any, app).enqueue("mail", to="ada")
    assert caught.value.hint == "arguments of the task go into a dict: app.enqueue('mail', {'to': ...})"
    with pytest.raises(DefinitionError, match="invalid priority 'urgent'"):
        await app.enqueue("mail", priority=cast(Any, "urgent"))
    with pytest.raises(DefinitionError, match="must be the name of a task") as caught:
        await app.enqueue(cast(Any, app.task(greet)), {"name": "Ada"})
    assert caught.value.hint == "call enqueue of a task itself: task.enqueue(...)"
    assert not sent


def test_depends_without_a_call_or_an_annotation_is_refused_with_the_correct_form(app: JetJobs) -> None:
    def no_call(db: Any = Depends) -> None: ...

    def no_type(db=Depends(dict)) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(DefinitionError, match=r"argument 'db': write Depends\(factory\), not Depends"):
        app.task(no_call)
    with pytest.raises(DefinitionError, match="argument 'db' has no type annotation") as caught:
        app.task(no_type)
    assert caught.value.hint == "db: Type = Depends(factory)"
