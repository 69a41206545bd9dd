"""Sources and docs are written in plain technical English: forms that read like a translation are banned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).resolve()
SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".conf", ".service"}
NAMES = {"Makefile", "Dockerfile"}
FOLDERS = ("jetjobs", "tests", "docs", "examples", "benchmarks", "deploy", ".github")
SCRIPTS = (ROOT / ".ci" / "run",)

BANNED = {
    r"\b(?:is|are|was) no (?!longer\b|more\b|different\b)\w+": "invalid ..., not a ..., without a ...",
    r"\btold\b|\btells?\b|\btelling\b": "reports, notifies, says",
    r"\basked of\b": "requested from",
    r"\banew\b": "again",
    r"\bfor ever\b": "indefinitely",
    r"\bwhoever\b": "any worker that",
    r"\bso long\b(?! as)": "for that long",
    r"\bso (?:many|much) (?:seconds|jobs|bytes|columns|threads|of)\b": "this many",
    r"\bmeanwhile[.:;,)]": "in the meantime, since then",
    r"\bstands? (?:in|on|at|there|above|before)\b|\bstood (?:in|on|still)\b|\bstandstill\b": "is",
    r"\bin hand\b": "held",
    r"\b(?:stops?|ends?|ended|stopped|stopping) in order\b": "gracefully",
    r"\bmend(?:s|ed|ing|able)?\b": "fixes, repairs",
    r"\bby hand\b|\bhand-made\b": "published without jetjobs, manually",
    r"fault of jetjobs itself": "internal error (please report)",
    r"All as it should be": "All jobs finished as expected.",
    r": which command\?": "missing command",
    r"\bsomebody\b|\bnobody\b": "another process, no one, nothing",
}


# A space also matches a line break, with the mark of a comment or a quote on the next line.
FORMS = {
    re.compile(form.replace(" ", r"\s+(?:(?:#|>)\s+)?"), re.IGNORECASE): better for form, better in BANNED.items()
}


def files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    chosen = {path for path in found if path.suffix in SUFFIXES or path.name in NAMES}
    return sorted(path for path in chosen.union(SCRIPTS) if path.resolve() != HERE)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def banned(text: str) -> list[tuple[int, str, str]]:
    """Each banned form in the text: the line where it starts, the words and what to write instead."""
    return sorted(
        (text.count("\n", 0, match.start()) + 1, match[0], better)
        for form, better in FORMS.items()
        for match in form.finditer(text)
    )


@pytest.mark.parametrize("path", files(), ids=relative)
def test_no_banned_form_occurs(path: Path) -> None:
    found = [
        f"{relative(path)}:{number}: {words!r}, better: {better}"
        for number, words, better in banned(path.read_text())
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\nthere is no job", [2]),
        ("one\nthere is\n    no job", [2]),
        ("# there is\n# no job", [1]),
        ("Nobody\nAnew", [1, 2]),
        ("it is no longer there, is no\n    longer there and is no\nmore", []),
        ("so long\nas it runs", []),
    ],
)
def test_a_form_is_found_across_lines_and_in_any_case(text: str, lines: list[int]) -> None:
    assert [number for number, _, _ in banned(text)] == lines


@pytest.mark.parametrize("path", [path for path in files() if path.suffix == ".md"], ids=relative)
def test_markdown_is_wrapped_at_100_columns(path: Path) -> None:
    """Tables, code and links that cannot be broken are exempt."""
    fenced, long = False, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        exempt = fenced or line.lstrip().startswith(("|", "[", "```")) or " " not in line.strip("-* ")
        if len(line) > 100 and not exempt:
            long.append(number)
    assert not long, f"{relative(path)}: lines {long}"
