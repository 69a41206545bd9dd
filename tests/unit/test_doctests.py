"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import jetjobs.cli.commands.doctor
import jetjobs.cli.global_options
import jetjobs.cli.live.collector
import jetjobs.cli.live.columns
import jetjobs.cli.live.plain_text
import jetjobs.cli.live.rate_history
import jetjobs.cli.live.tables
import jetjobs.cli.terminal.screen
import jetjobs.cli.terminal.table
import jetjobs.cli.terminal.text
import jetjobs.doctor.finding
import jetjobs.jetstream.transport.nats_client
import jetjobs.model

MODULES: list[ModuleType] = [
    jetjobs.jetstream.transport.nats_client,
    jetjobs.cli.global_options,
    jetjobs.cli.terminal.table,
    jetjobs.cli.terminal.text,
    jetjobs.cli.terminal.screen,
    jetjobs.cli.live.collector,
    jetjobs.cli.live.columns,
    jetjobs.cli.live.plain_text,
    jetjobs.cli.live.rate_history,
    jetjobs.cli.live.tables,
    jetjobs.cli.commands.doctor,
    jetjobs.doctor.finding,
    *(
        importlib.import_module(f"jetjobs.model.{found.name}")
        for found in pkgutil.iter_modules(jetjobs.model.__path__)
    ),
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_are_true(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", ["durations", "retry"])
def test_there_are_examples_where_arithmetic_is_explained(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"jetjobs.model.{name}")).attempted > 0
