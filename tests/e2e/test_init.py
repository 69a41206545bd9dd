"""`jetjobs init` writes a project whose test passes and whose README's commands work as they are written."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jetjobs.cli.commands.init import FILES
from tests.support.processes import Process, clean_environment, run

pytestmark = pytest.mark.timeout(240)


def commands_of(readme: Path) -> list[str]:
    """Every command of the README but those of Docker."""
    blocks = re.findall(r"```sh\n(.*?)```", readme.read_text(), re.S)
    return [line for block in blocks for line in block.splitlines() if not line.startswith("docker ")]


def environment() -> dict[str, str]:
    """An environment in which `jetjobs` and `pytest` are the installed programs."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return clean_environment(PATH=path, JETJOBS_QUEUES__NAMESPACE="")


def test_the_commands_of_its_readme_work_as_they_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "my shop"
    folder.mkdir()
    written = run(["init"], folder, env={"JETJOBS_QUEUES__NAMESPACE": ""})
    assert (written.returncode, written.stdout.split()) == (0, list(FILES))
    assert "created app my-shop; next: jetjobs dev" in written.stderr
    assert {path.name for path in folder.iterdir()} == set(FILES)
    first, second, *others = commands_of(folder / "README.md")
    assert (first, second) == ("pytest", "jetjobs dev")
    assert len(others) == 6

    def call(line: str) -> str:
        done = subprocess.run(
            line, shell=True, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    assert "2 passed" in call(first)
    with Process(shlex.split(second)[1:], folder, {"JETJOBS_QUEUES__NAMESPACE": ""}) as dev:
        dev.wait_for("worker ready", timeout=60)
        printed = [call(line) for line in others]
        assert '"Hello, Ada!"' in printed[0]
        assert "count_words" in printed[2]
        assert "greet(name: str) -> str" in printed[4]
        assert dev.end(signal.SIGINT, 60) == 0


def test_a_folder_that_is_not_empty_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("mine")
    (tmp_path / ".gitignore").write_text("mine too")
    refused = run(["init"], tmp_path)
    assert (refused.returncode, refused.stdout) == (6, "")
    assert refused.stderr.splitlines() == [
        "error: folder '.' is not empty; nothing was written",
        "hint: it would overwrite tasks.py, .gitignore; name a new folder: jetjobs init NAME",
    ]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "tasks.py": "mine",
        ".gitignore": "mine too",
    }
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    other = run(["init", "other"], tmp_path)
    assert other.returncode == 6
    assert "hint: it contains notes.txt; name a new folder" in other.stderr
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in ("file", "file/below"):
        done = run(["init", folder], tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Not a directory" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_new_folder_gets_the_name_of_the_app_and_hidden_files_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "shop-work" / ".git").mkdir(parents=True)
    made = run(["init", "shop-work"], tmp_path)
    assert made.returncode == 0, made.stderr
    assert 'app = JetJobs("shop_work")' in (tmp_path / "shop-work" / "tasks.py").read_text()
    assert run(["init", "a/b"], tmp_path).returncode == 0
    assert 'app = JetJobs("b")' in (tmp_path / "a" / "b" / "tasks.py").read_text()
