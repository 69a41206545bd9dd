"""docs/reference/cli.md matches the code."""

from __future__ import annotations

from pathlib import Path

from jetjobs.cli.reference import commands, markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_is_what_the_code_makes() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run `make docs`"


def test_every_command_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = [command.name for command in commands()]
    assert len(names) == len(set(names)) >= 28
    for name in names:
        assert f"# `jetjobs {name}`\n" in page


def test_every_argument_and_option_says_what_it_is_for() -> None:
    for command in commands():
        assert command.click.help, command.name
        for parameter in command.click.params:
            assert parameter.help, (command.name, parameter.name)
