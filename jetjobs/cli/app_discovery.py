"""Find the user's app: MODULE:NAME, a file, or the only JetJobs object in the usual modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from jetjobs.app import JetJobs
from jetjobs.cli.exit_codes import AppImportError
from jetjobs.model.errors import ConfigError, JetJobsError

_CREATE = 'create one with `app = JetJobs("shop")`'
USUAL = ("tasks", "jobs", "app", "main", "worker")


class AppNotFound(ConfigError):
    """No app was named, and the usual modules contain none."""


def find_app(target: str | None) -> JetJobs:
    """The app that `target` names. ConfigError if there is none or more than one."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if target is None:
        return _search()
    module_name, _, name = target.partition(":")
    if module_name.endswith(".py"):
        path = Path(module_name)
        if not path.is_file():
            raise ConfigError(f"no such file: {module_name}")
        if path.parent != Path():
            sys.path.insert(0, str(path.parent.resolve()))
        module_name = path.stem
    module = _load(module_name, target)
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, JetJobs):
            raise ConfigError(f"{target!r} is not a JetJobs app", hint=_names_hint(module))
        return found
    apps = _apps_in(module)
    if len(apps) != 1:
        listed = ", ".join(f"{module_name}:{n}" for n in apps) or "none"
        hint = "name it: --app MODULE:NAME" if apps else f"{_CREATE}, or name another module: --app MODULE:NAME"
        raise ConfigError(f"{module_name!r} must contain one JetJobs app; found: {listed}", hint=hint)
    return next(iter(apps.values()))


def _search() -> JetJobs:
    found: dict[str, JetJobs] = {}
    for name in USUAL:
        if Path(f"{name}.py").is_file() or (Path(name) / "__init__.py").is_file():
            found.update((f"{name}:{n}", app) for n, app in _apps_in(_load(name, name)).items())
    different = {id(app): target for target, app in reversed(found.items())}
    if len(different) == 1:
        return next(iter(found.values()))
    if not found:
        raise AppNotFound(
            f"no app found in {', '.join(f'{n}.py' for n in USUAL)} of {Path.cwd()}",
            hint=f"{_CREATE} in tasks.py; or change to the folder of yours; or name it with --app MODULE:NAME,"
            " JETJOBS_APP, or `app` in [tool.jetjobs] of pyproject.toml",
        )
    raise ConfigError(
        f"found more than one app: {', '.join(sorted(found))}", hint="choose one with --app MODULE:NAME"
    )


def _load(name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"no module named {name!r} in {Path.cwd()} or on the Python path",
                hint="name the app as MODULE:NAME, for example tasks:app",
            ) from None
        raise AppImportError(target) from error
    except JetJobsError:
        raise
    except (Exception, SystemExit) as error:
        raise AppImportError(target) from error


def _apps_in(module: ModuleType) -> dict[str, JetJobs]:
    return {name: value for name, value in vars(module).items() if isinstance(value, JetJobs)}


def _names_hint(module: ModuleType) -> str:
    names = sorted(_apps_in(module))
    return f"apps in this module: {', '.join(names)}" if names else f"this module has none; {_CREATE}"
