"""Where a fresh process finds the app: which modules to import, and the name it has there."""

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
from jetjobs.worker.isolation.messages import MAIN

_loading = False
"""Whether this is a child that imports the app."""


class Address(NamedTuple):
    """Plain data: sent to the child as it is."""

    module: str
    name: str
    others: list[str]
    """Modules to import beside: those of the tasks and of the classifiers, wherever the app itself stands."""
    main_file: str | None
    """File of the main program, when one of the modules is `__main__`."""
    main_package: str


def address_of(registry: Router, functions: Iterable[Any]) -> Address:
    """Where to find `registry` and `functions`. DefinitionError when a fresh process could not."""
    if _loading:
        raise DefinitionError("a worker was started by the import of the app's modules")
    needed = dict.fromkeys(name for name in map(_module_of, functions) if name)
    # All modules that hold the app are imported, in the order in which it was done here: one may hold the app,
    # and another may be the one that imports all the tasks.
    held = {
        name: found
        for name, module in list(sys.modules.items())
        if module is not None and (found := _name_in(module, registry))
    }
    if not held:
        raise DefinitionError(
            "isolation='process': a child process cannot find the app, as no module has it by a name",
            hint="make the app at the top level of a module: app = JetJobs(...)",
        )
    apart = [name for name in held if name not in ("__main__", MAIN)]
    home = apart[0] if apart else "__main__"
    modules = [*apart[1:], *(name for name in needed if name not in held)]
    if "__main__" not in (home, *modules):
        return Address(home, held[home], modules, None, "")
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if not file or not Path(file).is_file():
        raise DefinitionError(
            "isolation='process': the main program is no file that a child process could import",
            hint="put the app and its tasks into a module",
        )
    package = getattr(main, "__package__", None) or ""
    return Address(home, held[home], modules, str(Path(file).resolve()), package)


def load(address: Address) -> Any:
    """In the child: import what the address names; the app. Raises whatever the imports raise."""
    global _loading
    _loading = True
    if address.main_file is not None:
        _load_main(address.main_file, address.main_package)
    home = importlib.import_module(address.module)
    for name in address.others:
        importlib.import_module(name)
    _loading = False
    return getattr(home, address.name)


def _load_main(file: str, package: str) -> None:
    spec = importlib.util.spec_from_loader(MAIN, SourceFileLoader(MAIN, file), origin=file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__, module.__package__, module.__spec__ = file, package, None
    sys.modules["__main__"] = sys.modules[MAIN] = module
    spec.loader.exec_module(module)


def _module_of(function: Any) -> str | None:
    name = getattr(function, "__module__", None)
    return name if isinstance(name, str) and name in sys.modules else None


def _name_in(module: Any, wanted: object) -> str | None:
    try:
        return next((name for name, value in list(vars(module).items()) if value is wanted), None)
    except TypeError:  # something that is no module, which some libraries put there
        return None
