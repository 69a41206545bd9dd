"""Where a child finds the app: by a name that a module has for it."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetjobs import JetJobs, Settings
from jetjobs.model.errors import DefinitionError
from jetjobs.worker.isolation.app_locator import AppLocation, locate_app


@pytest.fixture
def app() -> JetJobs:
    return JetJobs("x", settings=Settings())


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = types.ModuleType("jetjobs_address_test")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def function_of(module: str) -> object:
    made = types.FunctionType((lambda: None).__code__, {})
    made.__module__ = module
    return made


def test_an_app_is_found_by_module_and_name(app: JetJobs, module: types.ModuleType) -> None:
    vars(module)["shop"] = app
    assert locate_app(app, []) == AppLocation(module.__name__, "shop", [], None, "")


def test_modules_of_tasks_and_classifiers_are_imported_too(app: JetJobs, module: types.ModuleType) -> None:
    vars(module)["shop"] = app
    functions = [function_of("json"), function_of("json"), function_of(module.__name__), function_of("not_there")]
    assert locate_app(app, functions).others == ["json"]


def test_an_app_that_no_module_has_is_refused(app: JetJobs) -> None:
    with pytest.raises(DefinitionError, match="cannot find the app"):
        locate_app(app, [])


def test_an_app_of_the_main_program_comes_with_its_file(
    app: JetJobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main = types.ModuleType("__main__")
    vars(main).update(app=app, __file__=str(tmp_path / "shop.py"), __package__="pkg")
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(DefinitionError, match="not a file"):
        locate_app(app, [])
    (tmp_path / "shop.py").touch()
    assert locate_app(app, []) == AppLocation("__main__", "app", [], str((tmp_path / "shop.py").resolve()), "pkg")


def test_a_module_goes_before_the_main_program(
    app: JetJobs, module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = types.ModuleType("__main__")
    main.__dict__["app"] = app
    monkeypatch.setitem(sys.modules, "__main__", main)
    vars(module)["shop"] = app
    assert locate_app(app, []) == AppLocation(module.__name__, "shop", [], None, "")
