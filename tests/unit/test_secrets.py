"""Secret arguments: stored with the job, masked wherever arguments are shown."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Annotated, Any

import pydantic
import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    SecretBytes,
    SecretStr,
    computed_field,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from jetjobs import JetJobs, Secret, Task
from jetjobs.define.signature import Signature
from jetjobs.model.errors import InvalidArguments
from jetjobs.model.masking import mask, mask_result, read_paths, shown_arguments, write_paths


class User(BaseModel):
    name: str
    password: Annotated[str, Secret()]


class Node(BaseModel):
    token: SecretStr
    below: list[Node] = []


class Login(TypedDict):
    user: str
    pin: Annotated[int, Secret()]


@dataclasses.dataclass
class Card:
    number: Annotated[str, Secret()]
    holder: str


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, serialize_by_alias=True)

    user_name: str
    pass_word: Annotated[str, Secret()]


class Aliased(BaseModel):
    word: Annotated[str, Secret()] = Field(
        validation_alias=AliasChoices("pass-word", AliasPath("login", "words", 0)), serialization_alias="w"
    )
    other: str = Field(default="", alias="Other")


class AliasedLogin(TypedDict):
    pin: Annotated[int, Secret(), Field(alias="Pin")]


@dataclasses.dataclass
class AliasedCard:
    number: Annotated[str, Secret(), Field(alias="No")]


class Counted(BaseModel):
    n: int

    @computed_field(alias="Code")  # type: ignore[prop-decorator]
    @property
    def code(self) -> Annotated[str, Secret()]:
        return f"code-{self.n}"


def taking(**hints: Any) -> Signature:
    """The signature of a task with these arguments."""

    def function() -> None: ...

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    setattr(function, "__signature__", inspect.Signature([inspect.Parameter(name, kind) for name in hints]))  # noqa: B010
    function.__annotations__ = {**hints, "return": None}
    return Signature("greet", function)


@pytest.mark.parametrize(
    ("hint", "paths"),
    [
        (str, ""),
        (Annotated[str, Secret()], "x"),
        (Annotated[str, Secret], "x"),
        (Annotated[str, Secret()] | None, "x"),
        (SecretStr, "x"),
        (SecretBytes, "x"),
        (pydantic.Secret[int], "x"),
        (SecretStr | None, "x"),
        (list[SecretStr], "x.*"),
        (dict[str, SecretStr], "x.*"),
        (tuple[int, SecretStr], "x.*"),
        (User, "x.password"),
        (list[User], "x.*.password"),
        (dict[str, User | None], "x.*.password"),
        (User | int, "x.password"),
        (Login, "x.pin"),
        (Card, "x.number"),
        (Annotated[User, Secret()], "x"),
        (Node, "x.below.*,x.token"),
        (Camel, "x.passWord,x.pass_word"),
        (Aliased, "x.login.words.*,x.pass-word,x.w,x.word"),
        (AliasedLogin, "x.Pin,x.pin"),
        (AliasedCard, "x.No,x.number"),
        (Counted, "x.Code,x.code"),
    ],
)
def test_secrets_are_found_wherever_they_stand(hint: Any, paths: str) -> None:
    assert write_paths(taking(x=hint).secrets) == paths


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (SecretStr, SecretStr("hush")),
        (SecretBytes, SecretBytes(b"\xff\x00hush")),
        (pydantic.Secret[int], pydantic.Secret[int](7)),
        (SecretStr | None, None),
        (list[SecretStr], [SecretStr("a"), SecretStr("**********")]),
        (Node, Node(token=SecretStr("a"), below=[Node(token=SecretStr("b"))])),
        (User, User(name="Ada", password="hush")),
        (Card, Card("4111", "Ada")),
        (Annotated[str, Secret()], "hush"),
    ],
)
def test_secrets_survive_the_way_to_the_worker(hint: Any, value: Any) -> None:
    made = taking(x=hint)
    assert made.decode(made.encode(made.bind((value,), {}))) == {"x": value}


def test_secret_bytes_inside_a_model_come_back_or_are_refused() -> None:
    class Keys(BaseModel):
        key: SecretBytes

    made = taking(x=Keys)
    kept = Keys(key=SecretBytes(b"hush"))
    assert made.decode(made.encode(made.bind((kept,), {}))) == {"x": kept}
    with pytest.raises(InvalidArguments):
        made.encode(made.bind((Keys(key=SecretBytes(b"\xff\xfe")),), {}))


def refused(made: Signature, **arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        made.bind((), arguments)
    with pytest.raises(InvalidArguments) as decoded:
        made.decode(json.dumps(arguments, default=str).encode())
    return f"{caught.value} {caught.value.problems} {decoded.value} {decoded.value.problems}"


def shout(value: str) -> str:
    raise ValueError(f"{value} is too quiet")


def test_errors_about_a_secret_do_not_repeat_it() -> None:
    made = taking(token=Annotated[str, AfterValidator(shout), Secret()], n=int)
    text = refused(made, token="hunter2", n="x")
    assert "hunter2" not in text
    assert "token: invalid (value_error)" in text
    assert "n: Input should be a valid integer" in text
    assert "token: is missing" in refused(made, n=1)


def test_errors_of_what_holds_a_secret_do_not_repeat_it() -> None:
    class Account(BaseModel):
        name: str
        password: SecretStr

        @model_validator(mode="after")
        def check(self) -> Account:
            raise ValueError(f"weak: {self.password.get_secret_value()}")

    class Other(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def check(cls, value: int) -> int:
            raise ValueError("too small")

    text = refused(taking(x=Account | Other, y=Other), x={"name": "Ada", "password": "hunter2"}, y={"number": 1})
    assert "hunter2" not in text
    assert "too small" in text


def test_wrong_fields_beside_a_secret_are_named_without_their_message() -> None:
    text = refused(taking(x=User), x={"name": 5, "password": ["hunter2"]})
    assert "hunter2" not in text
    assert "x.name: invalid (string_type); x.password: invalid (string_type)" in text


def test_errors_about_a_secret_that_is_known_by_an_alias_do_not_repeat_it() -> None:
    class Loud(BaseModel):
        word: Annotated[str, AfterValidator(shout), Secret()] = Field(alias="passWord")

    for name in ("passWord", "word"):
        text = refused(taking(x=Loud), x={name: "hunter2"})
        assert "hunter2" not in text
        assert "invalid (value_error)" in text


def test_an_argument_known_by_an_alias_is_secret_under_both_names() -> None:
    made = taking(word=Annotated[str, Secret(), Field(alias="passWord")])
    assert write_paths(made.secrets) == "passWord,word"
    assert made.decode(b'{"word": "a"}') == made.decode(b'{"passWord": "a"}') == made.bind(("a",), {})


def test_what_is_secret_in_a_result_is_masked_under_its_alias_too() -> None:
    def make() -> Camel: ...  # type: ignore[empty-body]

    app = JetJobs("test")
    task = app.task(make)
    kept = task.signature.result.encode(Camel.model_validate({"userName": "ada", "passWord": "hush"}))
    assert mask_result(json.loads(kept), task.secret_in_result) == {"userName": "ada", "passWord": "***"}


# Masking


@pytest.mark.parametrize(
    ("value", "paths", "shown"),
    [
        ({"a": 1}, "", {"a": 1}),
        ({"a": "x", "b": 2}, "a", {"a": "***", "b": 2}),
        ({"a": None}, "a", {"a": None}),
        ({"b": 1}, "a", {"b": 1}),
        ({"u": [{"t": "x"}, {"t": "y", "n": 1}]}, "u.*.t", {"u": [{"t": "***"}, {"t": "***", "n": 1}]}),
        ({"u": {"k": "x"}}, "u.*", {"u": {"k": "***"}}),
        ({"u": "not as declared"}, "u.t", {"u": "***"}),
        ({"u": ["x"]}, "u.t", {"u": "***"}),
        (["x"], "a", "***"),
        ("x", "a", "***"),
    ],
)
def test_secrets_are_masked_and_what_is_not_as_declared_too(value: Any, paths: str, shown: Any) -> None:
    before = json.dumps(value)
    assert mask(value, read_paths(paths)) == shown
    assert json.dumps(value) == before


def test_a_header_too_long_or_a_name_it_cannot_hold_makes_more_secret() -> None:
    many = [("x", f"field_{i}") for i in range(1_000)]
    assert write_paths(many) == "x"
    assert write_paths([("x", "a,b", "c"), ("x", "a.b")]) == "x"
    assert mask({"a,b": "hush", "n": 1}, read_paths(write_paths([("a,b",)]))) == {"a,b": "***", "n": "***"}


def test_arguments_are_shown_masked_whatever_the_body_is() -> None:
    headers = {"Jetjobs-Secret": "token"}
    assert shown_arguments(b'{"token": "x", "n": 1}', headers) == {"token": "***", "n": 1}
    assert shown_arguments(b"\xff", headers) == "<1 bytes that are not JSON>"
    assert shown_arguments(b"", {"Jetjobs-Payload": "u1.r"}) == "<in the object store: u1.r>"


def test_only_tasks_with_secrets_have_a_header_for_it() -> None:
    app = JetJobs("test")

    @app.task
    async def plain(n: int) -> None: ...

    @app.task
    async def hidden(n: int, token: SecretStr) -> None: ...

    assert plain.own_headers == {}
    assert hidden.own_headers == {"Jetjobs-Secret": "token"}
    made: Task[Any, Any] = hidden
    assert "hush" not in repr(made.bind(1, "hush"))
