"""Links of the documentation resolve, its snippets are complete, and the architecture page matches the code."""

from __future__ import annotations

import ast
import builtins
import dis
import re
from pathlib import Path
from types import CodeType, ModuleType

import pytest

import jetjobs
import jetjobs.admin
import jetjobs.errors
import jetjobs.events
from tests.unit.test_layers import ROOMS

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "deploy" / "README.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchor of each heading, as GitHub writes it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def snippets(page: Path) -> list[tuple[int, CodeType]]:
    """The line at which each Python snippet starts, and its code."""
    text = page.read_text()
    return [
        (
            text.count("\n", 0, match.start()) + 1,
            compile(match[1], name_of(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True),
        )
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


def names(code: CodeType, *operations: str) -> set[str]:
    return {one.argval for one in dis.get_instructions(code) if one.opname in operations}


def globals_read(code: CodeType) -> set[str]:
    """The module-level names that the code reads, including those that its functions and classes read."""
    read = names(code, "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_NAME") - names(code, "STORE_NAME")
    read = {name for name in read if not name.startswith("__")}
    return read.union(*(globals_read(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_snippet_uses_only_names_of_its_own_and_of_earlier_ones(page: Path) -> None:
    known = set(dir(builtins))
    missing = []
    for line, code in snippets(page):
        known |= names(code, "STORE_NAME")
        missing += [f"{name_of(page)}:{line}: {name}" for name in sorted(globals_read(code) - known)]
    assert missing == []


def test_a_local_name_of_a_function_is_missing_outside_it() -> None:
    code = compile("import os\ndef f(a):\n    b = a, os, c\nclass D:\n    e = 1\n    g = e\nprint(b)", "", "exec")
    assert globals_read(code) - names(code, "STORE_NAME") - set(dir(builtins)) == {"b", "c"}


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    pages = {page for page in PAGES if "docs" in page.relative_to(ROOT).parts[:1] and "adr" not in page.parts}
    assert [name_of(page) for page in sorted(pages - listed - {index})] == []


ARCHITECTURE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()


def test_the_walk_of_one_job_names_at_most_22_files_each_once() -> None:
    walk = ARCHITECTURE.partition("## The walk of one job")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+\.py)`", walk)
    steps = re.findall(r"^\d+\. `([\w/]+\.py)`:", walk, re.MULTILINE)
    assert named == steps, "a file is named outside its own step"
    assert 0 < len(named) <= 22
    assert len(set(named)) == len(named)
    assert [path for path in named if not (ROOT / "jetjobs" / path).is_file()] == []


def test_everything_else_that_the_architecture_names_exists() -> None:
    named = re.findall(r"`((?:jetjobs/|[a-z]+/)[\w/]+(?:\.py)?)`", ARCHITECTURE)
    places = [ROOT, ROOT / "jetjobs"]
    missing = [
        path for path in named if not any((p / path).exists() or (p / f"{path}.py").exists() for p in places)
    ]
    assert named
    assert missing == []


@pytest.mark.parametrize("layer", sorted(ROOMS))
def test_the_diagram_shows_the_order_in_which_rooms_may_import(layer: str) -> None:
    line = re.search(rf"^{layer}/ +(.* > .*)$", ARCHITECTURE, re.MULTILINE)
    assert line is not None
    groups = [group.split() for group in line[1].split(" > ")]
    place = {room: index for index, group in enumerate(groups) for room in group}
    assert set(place) == set(ROOMS[layer])
    wrong = [f"{a} -> {b}" for a, below in ROOMS[layer].items() for b in below if place[a] >= place[b]]
    assert wrong == []


@pytest.mark.parametrize("module", [jetjobs, jetjobs.errors, jetjobs.events, jetjobs.admin])
def test_the_reference_of_modules_lists_every_public_name(module: ModuleType) -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    section = page.partition(f"## `{module.__name__}`")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(\w+)`", section))
    assert sorted(set(module.__all__) - listed) == []
