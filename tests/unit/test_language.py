"""Sources and docs are written in plain technical English: forms that read like a translation are banned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).resolve()
SUFFIXES = {".py", ".md", ".toml", ".yml", ".conf"}
FOLDERS = ("jetjobs", "tests", "docs", "examples", "benchmarks", "deploy", ".github")

BANNED = {
    r"\b(?:is|are|was) no (?!longer\b|more\b|different\b)\w+": "invalid ..., not a ...",
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


def files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return sorted(path for path in found if path.suffix in SUFFIXES and path.resolve() != HERE)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", files(), ids=relative)
def test_no_banned_form_occurs(path: Path) -> None:
    found = [
        f"{relative(path)}:{number}: {match[0]!r}, better: {better}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for form, better in BANNED.items()
        if (match := re.search(form, line))
    ]
    assert not found, "\n" + "\n".join(found)


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
