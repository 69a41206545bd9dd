"""Locate the app for a new process: the modules to import and the name of the app in them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

from jetjobs.define.router import Router
from jetjobs.model.errors import DefinitionError
from jetjobs.worker.isolation.messages import CHILD_MAIN

_loading = False
"""Whether this process is a child that is importing the app."""


class AppLocation(NamedTuple):
    """Plain data that is sent to the child."""

    module: str
    name: str
    others: list[str]
    """Other modules to import: those of the tasks and of the classifiers."""
    main_file: str | None
    """File of the main program if one of the modules is `__main__`."""
    main_package: str


def locate_app(registry: Router, functions: Iterable[Any]) -> AppLocation:
    """Where to find `registry` and `functions`. DefinitionError if a new process could not import them."""
    if _loading:
        raise DefinitionError("importing the modules of the app started a worker")
    needed = dict.fromkeys(name for name in map(_module_of, functions) if name)
    # Import all modules that contain the app, in the order of this process: one may define the app, and another
    # may import all the tasks.
    found_in = {
        name: attribute
        for name, module in list(sys.modules.items())
        if module is not None and (attribute := _name_in(module, registry))
    }
    if not found_in:
        raise DefinitionError(
            "isolation='process': a child process cannot find the app: no module has it as an attribute",
            hint="create the app at the top level of a module: app = JetJobs(...)",
        )
    importable = [name for name in found_in if name not in ("__main__", CHILD_MAIN)]
    home = importable[0] if importable else "__main__"
    modules = [*importable[1:], *(name for name in needed if name not in found_in)]
    if "__main__" not in (home, *modules):
        return AppLocation(home, found_in[home], modules, None, "")
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if not file or not Path(file).is_file():
        raise DefinitionError(
            "isolation='process': a child process cannot import the main program: it is not a file",
            hint="move the app and its tasks to a module",
        )
    package = getattr(main, "__package__", None) or ""
    return AppLocation(home, found_in[home], modules, str(Path(file).resolve()), package)


def load_app(location: AppLocation) -> Any:
    """In the child: import the modules and return the app. Raises what the imports raise."""
    global _loading
    _loading = True
    if location.main_file is not None:
        _load_main(location.main_file, location.main_package)
    home = importlib.import_module(location.module)
    for name in location.others:
        importlib.import_module(name)
    _loading = False
    return getattr(home, location.name)


def _load_main(file: str, package: str) -> None:
    spec = importlib.util.spec_from_loader(CHILD_MAIN, SourceFileLoader(CHILD_MAIN, file), origin=file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__, module.__package__, module.__spec__ = file, package, None
    sys.modules["__main__"] = sys.modules[CHILD_MAIN] = module
    spec.loader.exec_module(module)


def _module_of(function: Any) -> str | None:
    name = getattr(function, "__module__", None)
    return name if isinstance(name, str) and name in sys.modules else None


def _name_in(module: Any, wanted: object) -> str | None:
    try:
        return next((name for name, value in list(vars(module).items()) if value is wanted), None)
    except TypeError:  # some libraries put other objects into sys.modules
        return None
