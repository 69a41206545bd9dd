"""Definitions of tasks: what they contain, what they hide, and how those of several workers are compared."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated, Any, Literal

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from jetjobs import Context, JetJobs, RetryPolicy, Secret, Task
from jetjobs.admin import TaskDefinition, WorkerRecord
from jetjobs.model.views.task_info import known_tasks, read_definition, schema_hash
from jetjobs.model.views.worker_info import read_worker


class Login(BaseModel):
    user: str = "admin"
    password: Annotated[str, Secret()] = "hunter2"
    pin: SecretStr = SecretStr("4711")


def declared(function: Any, **options: Any) -> Task[Any, Any]:
    task: Task[Any, Any] = JetJobs("x").task(name="send", **options)(function)
    return task


def worker(key: str, *tasks: TaskDefinition, **others: str) -> WorkerRecord:
    known = {one.name: one.fingerprint for one in tasks}
    return read_worker(key, {"tasks": {**known, **others}}, 0.0)


def test_a_definition_has_the_signature_the_schema_and_the_policy() -> None:
    def send(user: int, kind: Annotated[Literal["a", "b"], Field(description="which")] = "a") -> list[str]:
        """Send a message.

        More about it.
        """
        return []

    policy = RetryPolicy(3, base="1s", cap="1m", retry_on=(TimeoutError,), dead_on=(json.JSONDecodeError,))
    task = declared(send, queue="mail", aliases=["old"], retry=policy, timeout="30s")
    found = task.definition
    assert found.signature == "send(user: int, kind: Literal['a', 'b'] = ...) -> list[str]"
    assert found.description == "Send a message.\n\nMore about it."
    assert (found.queue, found.priority, found.aliases, found.secret) == ("mail", "normal", ("old",), ())
    assert (found.timeout, found.result_ttl) == (timedelta(seconds=30), timedelta(hours=1))
    assert found.retry == {
        "max_attempts": 3, "base_s": 1.0, "cap_s": 60.0, "jitter": True, "backoff": "exponential",
        "max_age_s": None, "retry_on": ["TimeoutError"], "dead_on": ["json.decoder.JSONDecodeError"],
    }  # fmt: skip
    assert found.schema is not None
    assert found.schema["required"] == ["user"]
    assert found.schema["properties"]["kind"]["enum"] == ["a", "b"]
    assert schema_hash(found.fingerprint) == task.signature.fingerprint
    assert read_definition(json.loads(json.dumps(found.as_dict()))) == found


def test_secrets_are_marked_in_the_schema_and_never_shown() -> None:
    def send(
        login: Login = Login(),  # noqa: B008
        token: Annotated[str, Secret(), Field(examples=["hunter2"])] = "hunter2",
        level: Annotated[Literal["hunter2"], Secret()] = "hunter2",
        default: int = 3,
    ) -> None: ...

    found = declared(send).definition
    assert "hunter2" not in json.dumps(found.as_dict())
    assert "4711" not in json.dumps(found.as_dict())
    assert found.signature == (
        "send(login: tests.unit.test_task_info.Login = ..., token: Secret = ..., level: Secret = ...,"
        " default: int = ...) -> None"
    )
    assert found.secret == ("level", "login.password", "login.pin", "token")
    assert found.schema is not None
    fields = found.schema["properties"]
    assert fields["token"]["writeOnly"] is fields["level"]["writeOnly"] is True
    assert "default" in fields  # the name of an argument, not a value
    inner = found.schema["$defs"]["Login"]["properties"]
    assert inner["password"]["writeOnly"] is inner["pin"]["writeOnly"] is True
    assert "writeOnly" not in inner["user"]


def test_a_context_and_dependencies_are_no_arguments() -> None:
    def send(user: int, context: Context) -> None: ...

    assert declared(send).definition.signature == "send(user: int) -> None"


def test_a_fingerprint_tells_the_arguments_from_the_rest() -> None:
    def send(user: int) -> None: ...

    one, slower = declared(send).definition, declared(send, timeout="1m").definition
    assert one.fingerprint == declared(send).definition.fingerprint
    assert one.fingerprint != slower.fingerprint
    assert schema_hash(one.fingerprint) == schema_hash(slower.fingerprint) != ""


def test_a_huge_schema_and_a_long_docstring_are_cut() -> None:
    def send(field: int) -> None: ...

    fields = {f"field_{number}": (int, Field(description="x" * 100)) for number in range(1000)}
    from pydantic import create_model

    model = create_model("Huge", **fields)  # type: ignore[call-overload]
    send.__annotations__ = {"field": model, "return": None}
    send.__doc__ = "y" * 10_000
    found = declared(send).definition
    assert found.schema is None
    assert len(found.description) == 2_000
    assert schema_hash(found.fingerprint)  # changes are still noticed
    assert len(json.dumps(found.as_dict())) < 4_000


def test_the_version_of_the_most_workers_comes_first_and_aliases_are_left_out() -> None:
    def send(user: int) -> None: ...

    new, old = declared(send, aliases=["mail"]).definition, declared(send, timeout="1m").definition
    gone = declared(send, queue="gone").definition
    workers = [
        worker("w1", new, mail=new.fingerprint),
        worker("w2", new),
        worker("w3", old),
        worker("w4", odd="1f"),
    ]
    odd, task = known_tasks(workers, [old, new, gone], [gone])
    assert (odd.name, odd.definition, odd.workers) == ("odd", None, ("w4",))
    assert odd.differences() == []
    assert [(one.workers, one.definition, one.in_app) for one in task.versions] == [
        (("w1", "w2"), new, False), (("w3",), old, False), ((), gone, True),
    ]  # fmt: skip
    assert task.definition == new
    assert task.workers == ("w1", "w2", "w3")
    assert task.differences() == ["aliases", "queue", "timeout_s"]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = [*TaskDefinition.__dataclass_fields__, "timeout_s", "result_ttl_s"]


@given(st.dictionaries(st.sampled_from(KEYS), json_values))
def test_a_definition_of_another_version_is_read_or_refused(value: dict[str, Any]) -> None:
    try:
        found = read_definition({"name": "a", "fingerprint": "b-c", **value})
    except (ValueError, TypeError, KeyError, AttributeError):
        return  # the registry passes over such a record
    found.as_dict()
    assert known_tasks([], [found], [found])
