"""The OpenAPI document and the table of calls: valid, complete, and as documented."""

from __future__ import annotations

import inspect
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import openapi_spec_validator
import pytest

from jetjobs.http.docs_page import POLICY, page
from jetjobs.http.openapi import document
from jetjobs.http.problems import STATUSES, code_of, problem_of
from jetjobs.http.routes import PREFIX, TABLE
from jetjobs.model import errors as e

DOCS = Path(__file__).parents[2] / "docs"


def test_the_document_is_valid_openapi() -> None:
    openapi_spec_validator.validate(document())
    assert document()["openapi"].startswith("3.1")


def test_the_document_is_the_one_in_the_documentation() -> None:
    stored = json.loads((DOCS / "reference" / "openapi.json").read_text())
    assert document() == stored, "run `make docs`"


def test_every_call_is_in_the_document_under_one_name() -> None:
    paths = document()["paths"]
    assert sum(len(one) for one in paths.values()) == len(TABLE)
    assert len({row.name for row in TABLE}) == len(TABLE)
    for row in TABLE:
        operation = paths[row.path][row.method.lower()]
        assert operation["summary"]
        assert {str(status) for status in row.answers} <= operation["responses"].keys()
        assert "default" in operation["responses"]
        assert inspect.getdoc(row.operation)


def test_every_call_is_on_the_page_of_the_documentation_with_its_scope() -> None:
    text = (DOCS / "http.md").read_text()
    table = text.partition("| Call | Scope | Does |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    listed: set[tuple[str, str, str]] = set()
    for calls, scope in rows:
        method, base = "", ""
        for part in re.findall(r"`([^`]+)`", calls):
            word, _, path = part.rpartition(" ")
            method = word or (path if path in ("PUT", "DELETE") else method)
            listed.add((method, path, scope.strip().strip("`")))
            base = path
        assert base
    scopes = {"enqueue": "enqueue:TASK"}
    for row in TABLE:
        last = row.path.removeprefix(PREFIX + "/")
        found = {path for _, path, scope in listed if scope == scopes.get(row.scope, row.scope)}
        ends = (row.path, last, last.split("/")[-1], "…/" + last.split("/")[-1])
        assert found & set(ends), f"{row.method} {row.path} ({row.scope}) is not on the page"


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_has_every_call_and_no_script() -> None:
    text = page("/mounted")
    parsed = _Page()
    parsed.feed(text)
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "img", "iframe", "link", "form"}
    assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]
    ids = {attributes.get("id") for tag, attributes in parsed.tags if tag == "h3"}
    assert ids == {row.name for row in TABLE}
    assert 'href="/mounted/openapi.json"' in text
    assert "default-src 'none'" in POLICY


# Problems


def kinds() -> list[type[e.JetJobsError]]:
    return [one for one in vars(e).values() if isinstance(one, type) and issubclass(one, e.JetJobsError)]


INTERNAL = {
    "JetJobsError", "EnqueueError", "DeliveryError", "LifespanFailed", "CheckpointError", "AttemptError",
    "JobTimeout", "LeaseLost", "ChildDied", "ChildRaised", "UnstorableValue", "ResultError", "ResultNotReady",
    "ResultExpired", "JobFailed", "JobCancelled", "FlowFailed", "FlowCancelled",
}  # fmt: skip
"""Errors that callers do not cause: bases, and those of running tasks and of results."""


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_status(kind: type[e.JetJobsError]) -> None:
    found = any(issubclass(kind, one) for one, _ in STATUSES)
    assert found is (kind.__name__ not in INTERNAL)


def test_a_problem_has_code_message_and_hint_of_the_error() -> None:
    problem = problem_of(e.QueueNotFound("queue 'x' does not exist", hint="create it"))
    assert problem.as_dict() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "queue 'x' does not exist",
        "code": "queue_not_found",
        "hint": "create it",
    }
    assert code_of(e.JobAmbiguous("x", places=[])) == "job_ambiguous"
    assert problem_of(e.BrokerUnavailable("x")).headers == {"Retry-After": "1"}
    assert problem_of(e.StorageFull("x")).status == 507
    assert problem_of(e.AccessDenied("x")).status == 502
    assert problem_of(e.EnqueueUnconfirmed("x", job_id="j")).as_dict()["job_id"] == "j"
