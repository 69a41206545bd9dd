"""Links of the documentation resolve, its snippets are Python, and the architecture page matches the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

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


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_snippet_is_python(page: Path) -> None:
    for snippet in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        compile(snippet, name_of(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


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
