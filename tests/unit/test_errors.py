"""Errors show their hint in tracebacks, once, and survive pickling with all they carry."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

from jetjobs import errors as e

EXAMPLES = [
    e.ConfigError("bad setting", hint="set it to 5"),
    e.BrokerError("refused", hint="look at the server", code=10059),
    e.EnqueueUnconfirmed("unknown", job_id="a1", hint="enqueue it again"),
    e.JobTooLarge("too large", size=10, limit=5, hint="send less"),
    e.InvalidArguments("task 'greet': no", task="greet", problems=[("name", "missing")]),
    e.JobFailed("dead", reason="exhausted", error_type="ValueError", text="no", traceback="Traceback"),
    e.JobAmbiguous("two", places=[("mail", "send")], hint="add --queue"),
    e.ResultNotReady("not yet", hint="start a worker"),
    e.JetJobsError("no hint"),
]


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_traceback_ends_with_the_hint() -> None:
    with pytest.raises(e.ConfigError) as caught:
        raise e.ConfigError("bad setting", hint="set it to 5")
    assert shown(caught.value).endswith("jetjobs.errors.ConfigError: bad setting\nhint: set it to 5\n")
    assert str(caught.value) == "bad setting"


def test_a_hint_that_is_set_later_replaces_the_first_and_keeps_other_notes() -> None:
    error = e.JetJobsError("message", hint="first")
    error.add_note("a note of the caller")
    error.hint = "second"
    assert error.__notes__ == ["a note of the caller", "hint: second"]
    error.hint = "second"
    assert error.__notes__ == ["a note of the caller", "hint: second"]
    error.hint = None
    assert error.__notes__ == ["a note of the caller"]


def test_an_error_without_a_hint_has_no_note() -> None:
    assert e.JetJobsError("message").hint is None
    assert shown(e.JetJobsError("message")) == "jetjobs.errors.JetJobsError: message\n"


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_a_pickled_error_keeps_its_text_hint_and_fields(error: e.JetJobsError) -> None:
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(same) is type(error)
        assert str(same) == str(error)
        assert same.hint == error.hint
        assert vars(same) == vars(error)
        assert shown(same) == shown(error)
