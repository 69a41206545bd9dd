"""Folders, modules and functions stay small enough to be found and read."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import jetjobs

ROOT = Path(jetjobs.__file__).parent
PATHS = sorted(ROOT.rglob("*.py"))
MODULES = [path for path in PATHS if path.name != "__init__.py"]

FOLDER_LIMIT, WIDE_FOLDER_LIMIT = 12, 24
WIDE_FOLDERS = {"cli/commands", "doctor/checks"}
MODULE_LIMIT = 350
FUNCTION_LIMIT = 60


def inside(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_folder_has_more_modules_than_a_reader_can_scan() -> None:
    counts = Counter(inside(path.parent) for path in MODULES)
    crowded = {
        folder: count
        for folder, count in counts.items()
        if count > (WIDE_FOLDER_LIMIT if folder in WIDE_FOLDERS else FOLDER_LIMIT)
    }
    assert crowded == {}


def test_no_module_name_occurs_twice_within_a_layer() -> None:
    names = Counter((path.relative_to(ROOT).parts[0], path.stem) for path in MODULES)
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_is_too_long() -> None:
    lengths = {inside(path): len(path.read_text().splitlines()) for path in PATHS}
    assert {path: length for path, length in lengths.items() if length > MODULE_LIMIT} == {}


@pytest.mark.parametrize("path", PATHS, ids=inside)
def test_no_function_is_too_long(path: Path) -> None:
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LIMIT
    }
    assert long == {}
