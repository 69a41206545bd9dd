"""Which progress and checkpoints are valid, and how checkpoints are read back."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from pydantic import BaseModel, Field, TypeAdapter, field_validator

from jetjobs.define.checkpoint import MAX_CHECKPOINT, MAX_MESSAGE, check_progress, decode, encode
from jetjobs.define.context import Context
from jetjobs.model.errors import CheckpointError, DefinitionError, JetJobsError, UnstorableValue
from jetjobs.model.job import Job

CONTEXT = Context(Job("u1", "greet", "mail", "normal", b"{}"), "w1", 1, 1, 0.0)


class State(BaseModel):
    step: int


@pytest.mark.parametrize(("given", "shown"), [(0, 0.0), (1, 1.0), (0.4, 0.4), (Fraction(1, 4), 0.25), (-0.0, 0.0)])
def test_a_progress_is_any_number_from_0_to_1(given: Any, shown: float) -> None:
    assert check_progress(given, None) == shown
    assert type(check_progress(given, "x" * MAX_MESSAGE)) is float


@pytest.mark.parametrize(
    "given",
    [-0.001, 1.001, 40, float("nan"), float("inf"), 10**400, True, "0.5", None, 1 + 0j],
    ids=lambda given: str(type(given).__name__),
)
def test_any_other_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        check_progress(given, None)


@pytest.mark.parametrize("message", ["x" * (MAX_MESSAGE + 1), 5, b"x", "\ud800"])
def test_a_message_is_a_short_text(message: Any) -> None:
    with pytest.raises(ValueError, match="message"):
        check_progress(0.5, message)


def test_the_text_of_a_refusal_says_what_was_given() -> None:
    for given, text in (
        (1.0000001, "not 1.0000001"),
        (40, "not 40"),
        ("0.5", "not str"),
        (Fraction(5, 4), "(5, 4)"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            check_progress(given, None)
    with pytest.raises(ValueError, match="must be text, not bytes"):
        check_progress(0.5, b"x")
    with pytest.raises(ValueError, match="UTF-8 cannot encode"):
        check_progress(0.5, "\ud800")


def test_a_progress_outside_of_a_worker_goes_nowhere_but_is_checked() -> None:
    CONTEXT.progress(0.5, "half")
    with pytest.raises(ValueError, match="0 to 1"):
        CONTEXT.progress(2)
    with pytest.raises(JetJobsError, match="checkpoints cannot be stored here"):
        CONTEXT.checkpoint_sync(1)


async def test_the_form_that_blocks_is_refused_on_a_loop() -> None:
    for call in (lambda: CONTEXT.checkpoint_sync(1), CONTEXT.resume_sync):
        with pytest.raises(JetJobsError, match="_sync") as caught:
            call()
        assert "await" in str(caught.value.hint)


def test_the_form_to_await_is_refused_without_a_loop() -> None:
    for call in (lambda: CONTEXT.checkpoint(1), CONTEXT.resume):
        with pytest.raises(JetJobsError, match="does not work here") as caught:
            call()
        assert "_sync" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (State(step=1), State),
        ({"a": [State(step=1)]}, dict[str, list[State]]),
        (timedelta(days=2), timedelta),
        (float("-inf"), float),
        ((1, "a"), tuple[int, str]),
        (b"ab", bytes),
        (3, TypeAdapter(int | None)),
        (None, Any),
    ],
)
def test_what_is_kept_comes_back(value: Any, kind: Any) -> None:
    assert decode(encode(value), kind) == value


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize("value", [object(), b"\xff", {(1, 2): object()}, lambda: None, LOOP])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(UnstorableValue, match="cannot be written as JSON"):
        encode(value)


def test_the_limit_counts_bytes_of_json() -> None:
    assert len(encode("x" * (MAX_CHECKPOINT - 2))) == MAX_CHECKPOINT
    with pytest.raises(UnstorableValue) as caught:
        encode("x" * (MAX_CHECKPOINT - 1))
    assert "65,537 bytes" in str(caught.value)
    assert caught.value.hint is not None


def test_one_that_fits_no_more_is_an_error_without_its_content() -> None:
    with pytest.raises(CheckpointError, match=r"does not fit State: step: .*integer") as caught:
        decode(b'{"step": "secret"}', State)
    assert "secret" not in str(caught.value)
    with pytest.raises(CheckpointError, match=r"does not fit list\[int\]"):
        decode(b"5", list[int])


def test_a_validator_that_raises_anything_is_an_error_of_the_checkpoint() -> None:
    class Odd(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def never(cls, n: int) -> int:
            raise KeyError(n)

    with pytest.raises(CheckpointError, match="a validator raised KeyError"):
        decode(b'{"n": 1}', Odd)


def test_a_type_that_pydantic_does_not_know_is_a_fault_of_the_task() -> None:
    class Opaque:
        pass

    with pytest.raises(DefinitionError, match="cannot be read as"):
        decode(b"1", Opaque)


def test_a_model_with_aliases_is_kept_and_read_again() -> None:
    class Page(BaseModel):
        number: int = Field(validation_alias="pageNumber")
        size: int = Field(serialization_alias="pageSize")

    kept = Page.model_validate({"pageNumber": 3, "size": 10})
    assert decode(encode(kept), Page) == kept
