"""Job ids: unambiguous, valid subject tokens, sorted by time."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetjobs.model.errors import DefinitionError
from jetjobs.model.wire.ids import (
    NO_KEY,
    JobId,
    anonymous_id,
    anonymous_sequence,
    check_job_id,
    is_id,
    key_token,
    new_run,
    new_uid,
    parse_id,
)

KEYED = re.compile(r"k[a-z2-7]{26}-.+", re.ASCII)
OWN_IDS = st.from_regex(r"[A-Za-z0-9_-]{1,100}", fullmatch=True).filter(lambda text: not KEYED.fullmatch(text))
UIDS = OWN_IDS | st.builds(new_uid) | st.builds(anonymous_id, st.floats(1, 9e9), st.integers(1, 2**63))
KEYS = st.just(NO_KEY) | st.text(min_size=1, max_size=1024).map(key_token)


@given(KEYS, UIDS)
def test_an_id_is_read_back_as_the_tokens_it_was_made_of(key: str, uid: str) -> None:
    assert parse_id(str(JobId(key, uid))) == JobId(key, uid)


@given(st.text(min_size=1, max_size=1024), OWN_IDS)
@example("order-1", "x" * 100)
def test_a_job_with_a_key_and_an_id_of_its_own_has_a_usable_id(key: str, uid: str) -> None:
    assert is_id(str(JobId(key_token(key), check_job_id(uid))))


@given(st.integers(1, 4 * 10**15), st.integers(1, 10**19 - 1))
def test_an_id_made_of_a_place_is_usable_and_names_the_sequence(micros: int, sequence: int) -> None:
    made = anonymous_id(micros / 1e6, sequence)
    assert is_id(made)
    assert anonymous_sequence(made) == sequence
    assert made != anonymous_id((micros + 1) / 1e6, sequence)


@pytest.mark.parametrize("other", ["s0123456789-7", "s060a2418202240-0", "s060a2418202240", "x060a2418202240-1"])
def test_an_id_of_another_form_names_no_sequence(other: str) -> None:
    assert anonymous_sequence(other) is None


def test_a_uid_is_a_uuid_of_version_7() -> None:
    for _ in range(200):
        uid = new_uid()
        assert re.fullmatch(r"[0-9a-f]{32}", uid)
        assert uid[12] == "7"
        assert uid[16] in "89ab"
        assert check_job_id(uid) == uid


def test_uids_sort_by_the_time_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    uids = []
    for millisecond in range(1_700_000_000_000, 1_700_000_000_500):
        monkeypatch.setattr(time, "time", lambda now=millisecond: (now + 0.5) / 1000)
        uids.append(new_uid())
        assert int(uids[-1][:12], 16) == millisecond
    assert uids == sorted(uids)


def test_ids_and_runs_do_not_repeat() -> None:
    assert len({new_uid() for _ in range(10_000)}) == 10_000
    assert len({new_run() for _ in range(1_000)}) == 1_000
    assert re.fullmatch(r"[0-9a-f]{10}", new_run())


@given(OWN_IDS)
def test_an_id_of_the_callers_own_is_kept(job_id: str) -> None:
    assert check_job_id(job_id) == job_id


@pytest.mark.parametrize(
    "job_id",
    [
        "", "a.b", "a b", " a", "a\r\n", "a\nb", "a\rb", "a\0b", "é", "*", ">", "x" * 129, "a/b", "a:b",
        5, None, b"abc",
    ],
)  # fmt: skip
def test_an_id_that_is_not_a_subject_token_is_refused(job_id: Any) -> None:
    with pytest.raises(DefinitionError, match="invalid job_id"):
        check_job_id(job_id)


def test_an_id_in_the_form_of_keyed_jobs_is_refused() -> None:
    with pytest.raises(DefinitionError, match="reserved"):
        check_job_id(f"{key_token('order-1')}-mine")


def test_the_key_token_is_stable_across_versions() -> None:
    # Part of the wire contract: a change would allow a second live job with the same key.
    assert key_token("order-1") == "kbox6eikw2juyyfb3qycairwtm3"


@given(st.text(), st.text())
def test_a_key_token_is_27_characters_and_one_to_one(key: str, other: str) -> None:
    token = key_token(key)
    assert re.fullmatch(r"k[a-z2-7]{26}", token)
    assert (token == key_token(other)) == (key == other)
