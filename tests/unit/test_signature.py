"""Arguments: bound by name, checked on both ends, unchanged by a round trip."""

# No `from __future__ import annotations`: the functions below are declared inside tests, with local types.

import enum
import json
import math
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, Field, field_validator

from jetjobs.define.dependencies import INJECTED, Depends
from jetjobs.define.secret import Secret
from jetjobs.define.signature import Signature
from jetjobs.model.errors import DefinitionError, InvalidArguments, MalformedJob, UnstorableValue


def greet(name: str, times: int = 1, *, loud: bool = False) -> str:
    return name * times


GREET = Signature("greet", greet)


# Binding


@pytest.mark.parametrize(
    ("args", "kwargs", "bound"),
    [
        (("Ada",), {}, {"name": "Ada"}),
        (("Ada", 2), {}, {"name": "Ada", "times": 2}),
        (("Ada",), {"times": 2, "loud": True}, {"name": "Ada", "times": 2, "loud": True}),
        ((), {"name": "Ada"}, {"name": "Ada"}),
        ((), {"times": 3, "name": "Ada"}, {"name": "Ada", "times": 3}),
    ],
)
def test_arguments_are_bound_by_name(args: tuple[Any, ...], kwargs: dict[str, Any], bound: dict[str, Any]) -> None:
    assert GREET.bind(args, kwargs) == bound


@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [
        ((5,), {}, ["name"]),
        (("Ada", "often"), {}, ["times"]),
        ((), {}, ["name"]),
        (("Ada",), {"colour": "red"}, ["colour"]),
        (("Ada",), {"name": "Bob"}, ["name"]),
        (("Ada", 1), {"name": "Bob", "times": 2}, ["name", "times"]),
        ((5, "often"), {"loud": "perhaps"}, ["name", "times", "loud"]),
    ],
)
def test_each_wrong_argument_is_named(args: tuple[Any, ...], kwargs: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(InvalidArguments) as caught:
        GREET.bind(args, kwargs)
    assert [name for name, _ in caught.value.problems] == names
    assert caught.value.task == "greet"
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize("args", [("Ada", 1, True), ("Ada", 1, True, None)])
def test_too_many_positional_arguments_are_refused(args: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArguments, match=f"takes 2 positional arguments, got {len(args)}"):
        GREET.bind(args, {})


def test_injected_arguments_do_not_count_as_positions() -> None:
    def use(
        db: Annotated[Any, Depends(dict)], name: str, log: Annotated[Any, Depends(list)] = INJECTED
    ) -> None: ...

    signature = Signature("use", use)
    assert signature.names == ("name",)
    assert set(signature.dependencies) == {"db", "log"}
    assert signature.bind(("Ada",), {}) == {"name": "Ada"}


def test_more_than_five_problems_are_counted() -> None:
    def many(a: int, b: int, c: int, d: int, e: int, f: int, g: int) -> None: ...

    with pytest.raises(InvalidArguments, match="and 2 more") as caught:
        Signature("many", many).bind((), {})
    assert len(caught.value.problems) == 7


# Declaring


class Opaque:
    """A class that pydantic does not know."""


def star(*names: str) -> None: ...
def double_star(**names: str) -> None: ...
def positional_only(name: str, /) -> None: ...
def unannotated(name) -> None: ...  # type: ignore[no-untyped-def]
def unannotated_with_default(name: str, times=1) -> None: ...  # type: ignore[no-untyped-def]
def unreadable(name: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def opaque(thing: Opaque) -> None: ...
def opaque_result(name: str) -> Opaque: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (star, "names"),
        (double_star, "names"),
        (positional_only, "'name' is positional-only"),
        (unannotated, "'name' has no type annotation"),
        (unannotated_with_default, "'times' has no type annotation"),
        (unreadable, "Nowhere"),
        (opaque, "Opaque"),
        (opaque_result, "Opaque"),
    ],
)
def test_a_signature_that_cannot_travel_is_refused_at_declaration(function: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said) as caught:
        Signature("greet", function)
    assert "'greet'" in str(caught.value)


def test_a_class_that_cannot_travel_is_refused_with_a_way_out() -> None:
    with pytest.raises(DefinitionError) as caught:
        Signature("greet", opaque)
    assert caught.value.hint is not None
    assert "Depends" in caught.value.hint


# Encoding


def anything(value: Any, other: Any = None) -> Any: ...


ANYTHING = Signature("anything", anything)


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize("value", [object(), {"a": object()}, "\ud800", b"\xff", [lambda: None], LOOP])
def test_a_value_that_has_no_json_form_is_refused_by_the_name_of_its_argument(value: Any) -> None:
    with pytest.raises(InvalidArguments, match="'other'") as caught:
        ANYTHING.encode(ANYTHING.bind((1,), {"other": value}))
    assert [name for name, _ in caught.value.problems] == ["other"]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=20))
def test_plain_values_of_any_type_come_back_equal(value: Any) -> None:
    assert ANYTHING.decode(ANYTHING.encode({"value": value})) == {"value": value}


def test_an_int_that_the_worker_could_not_read_is_refused_by_the_producer() -> None:
    def count(n: int) -> None: ...

    signature = Signature("count", count)
    try:
        body = signature.encode(signature.bind((10**5000,), {}))
    except InvalidArguments:
        return
    assert signature.decode(body) == {"n": 10**5000}


# Decoding


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"hello",
        b"{",
        b'{"name": "Ada"',
        b'{"name": "Ada"} x',
        b"[]",
        b'["Ada"]',
        b"null",
        b"5",
        b'"Ada"',
        b"\xff\xfe",
        b"\x00",
        b'{"name": "\\ud800"}',
        b'{"name": "Ada", "times": ' + b"9" * 5000 + b"}",
        b"[" * 500_000 + b"]" * 500_000,
        b'{"name": ' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_not_a_json_object_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedJob):
        GREET.decode(body)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"{}", ["name"]),
        (b'{"name": 5}', ["name"]),
        (b'{"name": null}', ["name"]),
        (b'{"name": "Ada", "times": "often"}', ["times"]),
        (b'{"name": "Ada", "times": 1.5}', ["times"]),
        (b'{"name": "Ada", "colour": "red"}', ["colour"]),
    ],
)
def test_wrong_arguments_in_a_body_are_named(body: bytes, names: list[str]) -> None:
    with pytest.raises(InvalidArguments) as caught:
        GREET.decode(body)
    assert [name for name, _ in caught.value.problems] == names


@given(st.binary(max_size=60))
def test_any_body_is_read_or_refused_as_a_delivery_error(body: bytes) -> None:
    try:
        assert "name" in GREET.decode(body)
    except (MalformedJob, InvalidArguments) as error:
        assert str(error)


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), ZeroDivisionError("x"), RuntimeError("x")])
def test_a_validator_that_breaks_makes_the_arguments_invalid(error: Exception) -> None:
    class Order(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def check(cls, number: int) -> int:
            raise error

    def ship(order: Order) -> None: ...

    with pytest.raises(InvalidArguments, match=f"a validator raised {type(error).__name__}"):
        Signature("ship", ship).decode(b'{"order": {"number": 1}}')


# Round trips


class Inner(BaseModel):
    ratio: float
    data: bytes
    when: datetime


class Outer(BaseModel):
    inner: Inner
    others: list[Inner]


@dataclass
class Point:
    x: float
    label: bytes


def scalars(
    s: str,
    i: int,
    f: float,
    b: bytes,
    d: datetime,
    t: timedelta,
    u: uuid.UUID,
    floats: list[float],
    parts: list[bytes],
) -> None: ...


SCALARS = Signature("scalars", scalars)
MOMENTS = st.datetimes(timezones=st.just(UTC))
FLOATS = st.floats(allow_nan=True, allow_infinity=True)


def same(one: Any, other: Any) -> bool:
    """Equal, with NaN equal to itself."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, BaseModel):
        return type(one) is type(other) and same(dict(one), dict(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def whole_or_refused(signature: Signature, arguments: dict[str, Any]) -> bool:
    """The producer may reject a value; the worker must get what it stored unchanged."""
    try:
        body = signature.encode(signature.bind((), arguments))
    except InvalidArguments:
        return True
    return same(signature.decode(body), arguments)


def round_trip(signature: Signature, arguments: dict[str, Any]) -> dict[str, Any]:
    return signature.decode(signature.encode(signature.bind((), arguments)))


@given(
    st.fixed_dictionaries(
        {
            "s": st.text(),
            "i": st.integers(-(2**200), 2**200),
            "f": FLOATS,
            "b": st.binary(),
            "d": MOMENTS,
            "t": st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
            "u": st.uuids(),
            "floats": st.lists(FLOATS, max_size=2),
            "parts": st.lists(st.binary(), max_size=2),
        }
    )
)
def test_scalars_and_lists_of_them_come_back_whole(arguments: dict[str, Any]) -> None:
    assert same(round_trip(SCALARS, arguments), arguments)


def take_model(outer: Outer) -> None: ...


INNERS = st.builds(
    Inner, ratio=st.floats(allow_nan=False, allow_infinity=False), data=st.just(b"abc"), when=MOMENTS
)


@given(st.builds(Outer, inner=INNERS, others=st.lists(INNERS, max_size=2)))
def test_nested_models_come_back_whole(outer: Outer) -> None:
    assert same(round_trip(Signature("take", take_model), {"outer": outer}), {"outer": outer})


@pytest.mark.parametrize(
    ("ratio", "data"), [(math.nan, b""), (math.inf, b""), (-math.inf, b""), (1.0, b"\xff\x00")]
)
def test_nan_infinity_and_bytes_within_a_model_come_back_whole_or_are_refused(ratio: float, data: bytes) -> None:
    inner = Inner(ratio=ratio, data=data, when=datetime.now(UTC))
    outer = Outer(inner=inner, others=[inner])
    assert whole_or_refused(Signature("take", take_model), {"outer": outer})


@pytest.mark.parametrize("value", [math.nan, math.inf, [math.nan], {"a": -math.inf}])
def test_nan_and_infinity_of_any_type_are_not_changed_in_silence(value: Any) -> None:
    try:
        came = round_trip(ANYTHING, {"value": value})
    except InvalidArguments:
        return
    assert came != {"value": None}
    assert "null" not in ANYTHING.encode({"value": value}).decode()


@given(x=FLOATS, label=st.binary())
def test_dataclasses_come_back_whole(x: float, label: bytes) -> None:
    def take(point: Point) -> None: ...

    came = round_trip(Signature("take", take), {"point": Point(x, label)})["point"]
    assert isinstance(came, Point)
    assert same([came.x, came.label], [x, label])


# Results


def results_of(hint: Any) -> Signature:
    def work() -> None: ...

    work.__annotations__["return"] = hint
    return Signature("work", work)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 5),
        (str, "žluťoučký"),
        (float, math.inf),
        (bytes, b"\xff"),
        (type(None), None),
        (list[Decimal], [Decimal("1.10")]),
        (datetime, datetime(2027, 1, 31, tzinfo=UTC)),
        (dict[str, int], {"a": 1}),
        (Point, Point(1.0, b"p")),
        (Inner, Inner(ratio=0.5, data=b"x", when=datetime(2027, 1, 31, tzinfo=UTC))),
        (Any, [1, "two", None]),
    ],
)
def test_a_result_comes_back_as_it_was_returned(hint: Any, value: Any) -> None:
    signature = results_of(hint)
    came = signature.result.decode(signature.result.encode(value))
    assert came == value
    assert type(came) is type(value)


def test_the_result_of_a_task_without_annotation_may_be_any_json() -> None:
    def work():  # type: ignore[no-untyped-def]
        ...

    signature = Signature("work", work)
    assert signature.result.decode(signature.result.encode({"a": [1]})) == {"a": [1]}


@pytest.mark.parametrize("value", [object(), {"a": object()}, "\ud800"])
def test_a_result_without_a_json_form_is_named_by_its_type(value: Any) -> None:
    with pytest.raises(UnstorableValue, match=rf"'work' returned {type(value).__qualname__}"):
        results_of(Any).result.encode(value)


# Secrets

SECRET = "hunter2-s3cret"


class Kind(enum.Enum):
    A = "a"


class Card(BaseModel):
    number: int
    holder: str = ""


class A(BaseModel):
    kind: Literal["a"]


class B(BaseModel):
    kind: Literal["b"]


TYPES: list[tuple[Any, Any]] = [
    (int, SECRET),
    (float, SECRET),
    (bool, SECRET),
    (datetime, SECRET),
    (timedelta, SECRET),
    (uuid.UUID, SECRET),
    (Decimal, SECRET),
    (Literal["a"], SECRET),
    (Kind, SECRET),
    (list[int], [SECRET]),
    (dict[str, int], {"key": SECRET}),
    (Card, {"number": SECRET}),
    (Card, SECRET),
    (int | None, SECRET),
    (Annotated[str, Field(max_length=3)], SECRET),
    (Annotated[str, Field(pattern="^x$")], SECRET),
    (Annotated[Union[A, B], Field(discriminator="kind")], {"kind": SECRET}),  # noqa: UP007
]


@pytest.mark.parametrize(("hint", "value"), TYPES, ids=[str(hint)[:40] for hint, _ in TYPES])
def test_input_values_never_appear_in_error_texts(hint: Any, value: Any) -> None:
    def pay(x: Any) -> None: ...

    pay.__annotations__["x"] = hint
    signature = Signature("pay", pay)
    with pytest.raises(InvalidArguments) as caught:
        signature.bind((value,), {})
    assert SECRET not in f"{caught.value} {caught.value.problems}"
    with pytest.raises(InvalidArguments) as caught:
        signature.decode(ANYTHING.encode({"value": value}).replace(b'"value"', b'"x"', 1))
    assert SECRET not in f"{caught.value} {caught.value.problems}"


def test_a_model_that_was_changed_to_something_wrong_is_refused_by_name_and_not_shown() -> None:
    def pay(card: Card) -> None: ...

    signature = Signature("pay", pay)
    card = Card(number=1)
    card.number = SECRET  # type: ignore[assignment]
    with pytest.raises(InvalidArguments, match="'card'") as caught:
        signature.encode(signature.bind((card,), {}))
    assert SECRET not in f"{caught.value} {caught.value.problems}"


def test_a_body_that_is_not_json_is_not_shown() -> None:
    with pytest.raises(MalformedJob) as caught:
        GREET.decode(f'{{"name": "{SECRET}"'.encode())
    assert SECRET not in str(caught.value)


# Aliases


class Aliased(BaseModel):
    word: str = Field(alias="passWord")
    other: int = Field(default=1, validation_alias=AliasChoices("Other", "oTher"))


@dataclass
class AliasedPair:
    left: Annotated[int, Field(alias="Left")]


def test_fields_with_aliases_are_read_by_name_and_by_alias() -> None:
    def use(x: Aliased, y: AliasedPair) -> Aliased:
        return x

    signature = Signature("use", use)
    value, pair = Aliased.model_validate({"passWord": "a", "Other": 2}), AliasedPair(3)
    sent = signature.encode(signature.bind((value, pair), {}))
    assert signature.decode(sent) == {"x": value, "y": pair}
    by_hand = b'{"x": {"passWord": "a", "oTher": 2}, "y": {"Left": 3}}'
    assert signature.decode(by_hand) == {"x": value, "y": pair}
    assert signature.bind(({"word": "a", "other": 2}, {"left": 3}), {}) == {"x": value, "y": pair}
    assert signature.result.decode(signature.result.encode(value)) == value
    assert signature.result.decode(b'{"passWord": "a", "Other": 2}') == value


# Results against the annotation


class Place(BaseModel):
    x: int


class Hidden(BaseModel):
    token: Annotated[str, Secret()]


def returning(annotation: Any) -> Signature:
    def task() -> None: ...

    task.__annotations__["return"] = annotation
    return Signature("task", task)


def mismatches(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(one)["error"] for one in caplog.records if vars(one).get("event") == "job.result_mismatch"]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int, 1), (float, 1), (str, "x"), (Place, Place(x=1)), (None, None), (int | None, None), (Any, {"a": 1})],
)
def test_a_result_that_fits_is_not_reported(annotation: Any, value: Any, caplog: pytest.LogCaptureFixture) -> None:
    returning(annotation).result.encode(value)
    assert mismatches(caplog) == []


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (int, "many", "Input should be a valid integer"),
        (int, None, "Input should be a valid integer"),
        (int, "7", "str: a value is not of its declared type"),
        (None, 5, "Input should be null"),
        (list[int], [1, "x"], "1: Input should be a valid integer"),
        (Place, {"x": "north"}, "x: Input should be a valid integer"),
        (Place, {"x": 1}, "dict: a value is not of its declared type"),
        (Literal["a", "b"], "c", "Input should be 'a' or 'b'"),
        (Hidden, {"token": 5}, "token: invalid (string_type)"),
    ],
)
def test_a_result_that_does_not_fit_is_encoded_and_reported_once(
    annotation: Any, value: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    signature = returning(annotation)
    assert json.loads(signature.result.encode(value)) == value
    signature.result.encode(value)
    assert [found.startswith(problem) for found in mismatches(caplog)] == [True], mismatches(caplog)


def test_the_first_results_are_compared_and_then_one_in_a_thousand(caplog: pytest.LogCaptureFixture) -> None:
    signature = returning(int)
    for number in range(100):
        signature.result.encode(number)
    for _ in range(899):
        signature.result.encode(None)
    assert mismatches(caplog) == []
    signature.result.encode(None)
    assert len(mismatches(caplog)) == 1


def test_a_large_result_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    returning(int).result.encode("x" * 100_000)
    assert mismatches(caplog) == []
