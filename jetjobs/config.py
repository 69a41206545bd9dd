"""Load the settings from all sources, and record the source of each value.

The only module that reads the environment. The first source that has a value wins:
flags > JETJOBS_* > jetjobs.toml or pyproject.toml > .env (dev only) > NATS_URL > nats context >
.jetjobs/dev.json > defaults.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from dotenv import dotenv_values
from pydantic import BaseModel, SecretStr

from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import Settings, build_settings, check_urls, show_url
from jetjobs.model.wire.lenient_json import read_json

PREFIX = "JETJOBS_"
DEV_FILE = Path(".jetjobs") / "dev.json"

# Variables of jetjobs that are not settings.
_NOT_SETTINGS = frozenset({"JETJOBS_CHILD", "JETJOBS_CHILD_PORT", "JETJOBS_CONFIG", "JETJOBS_DEV"})


class LoadedSettings(NamedTuple):
    """The settings, and the source of each value by its dotted key."""

    settings: Settings
    sources: dict[str, str]

    def rows(self) -> list[tuple[str, str, str]]:
        """For each setting its key, its value as text with secrets masked, and its source."""
        return [
            (key, _show(key, value), self.sources.get(key, "default")) for key, value in _flatten(self.settings)
        ]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    context: str | None = None,
    dotenv: bool = False,
    start: Path | None = None,
) -> LoadedSettings:
    """The settings from all sources. ConfigError names the source of an invalid value."""
    where = start or Path.cwd()
    dotenv = dotenv or bool(os.environ.get("JETJOBS_DEV"))
    environ = dict(os.environ)
    layers: list[tuple[str, dict[str, Any]]] = [("default", {})]
    layers.append(_dev_server(where))
    layers.append(_nats_context(environ, context))
    if environ.get("NATS_URL"):
        layers.append(("env NATS_URL", {"nats.url": environ["NATS_URL"]}))
    if dotenv and (where / ".env").is_file():
        layers.append(_dotenv(where / ".env"))
    layers.append(_file(config or find_file(where)))
    for name, key in _check_names(environ, "the environment").items():
        layers.append((f"env {name}", {key: environ[name]}))
    for key, value in (flags or {}).items():
        if value is not None:
            layers.append(("flag", {key: value}))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer in layers:
        for key, value in layer.items():
            _put(values, key, value)
            sources[key] = source
    return LoadedSettings(build_settings(values, sources), sources)


def find_dev_server(start: Path) -> dict[str, Any] | None:
    """The dev server of this folder or a parent folder, if it is running."""
    for folder in (start, *start.parents):
        path = folder / DEV_FILE
        if path.is_file():
            try:
                found: dict[str, Any] = read_json(path.read_text())
                check_urls(found["url"])
                return found if _is_running(found["pid"]) else None
            except (OSError, ValueError, KeyError, TypeError, OverflowError, AttributeError):
                return None
    return None


def _is_running(pid: Any) -> bool:
    """OSError if the process does not exist."""
    if type(pid) is not int or pid <= 0:  # the system takes these for groups of processes
        return False
    os.kill(pid, 0)
    return True


def _dev_server(where: Path) -> tuple[str, dict[str, Any]]:
    found = find_dev_server(where)
    return (str(DEV_FILE), {"nats.url": found["url"]}) if found else ("", {})


def _nats_context(environ: Mapping[str, str], name: str | None) -> tuple[str, dict[str, Any]]:
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config") / "nats"
    name = name or environ.get("NATS_CONTEXT")
    asked = name is not None
    if name is None:
        selected = home / "context.txt"
        name = selected.read_text().strip() if selected.is_file() else ""
    if not name:
        return "", {}
    path = home / "context" / f"{name}.json"
    try:
        found = _table(read_json(path.read_text()))
    except (OSError, ValueError) as error:
        if asked:
            raise ConfigError(f"nats context {name!r} cannot be read: {error}") from error
        return "", {}
    keys = {
        "url": "url",
        "creds": "creds",
        "nkey": "nkey",
        "user": "user",
        "password": "password",
        "token": "token",
        "ca": "tls_ca",
        "cert": "tls_cert",
        "key": "tls_key",
        "tls_first": "tls_first",
    }
    values = {f"nats.{ours}": found[theirs] for theirs, ours in keys.items() if found.get(theirs)}
    return f"nats context {name}", values


def find_file(where: Path) -> Path | None:
    """The configuration file: the one in JETJOBS_CONFIG, else the nearest in this folder or a parent folder."""
    environ = os.environ
    if environ.get("JETJOBS_CONFIG"):
        return Path(environ["JETJOBS_CONFIG"])
    for folder in (where, *where.parents):
        if (folder / "jetjobs.toml").is_file():
            return folder / "jetjobs.toml"
        project = folder / "pyproject.toml"
        if project.is_file():
            return project
    return None


def _file(path: Path | None) -> tuple[str, dict[str, Any]]:
    if path is None:
        return "", {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        if path.name == "pyproject.toml":
            found = _table(_table(found.get("tool", {})).get("jetjobs", {}))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return str(path), dict(_checked(_dotted(found), str(path)))


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a table of keys, found {type(value).__name__}")
    return value


def _dotenv(path: Path) -> tuple[str, dict[str, Any]]:
    """The settings of jetjobs in the file. Other variables are ignored."""
    try:
        found = dotenv_values(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    keys = _check_names(found, str(path))
    return ".env", {key: value for name, key in keys.items() if (value := found[name]) is not None}


def _check_names(names: Iterable[str], source: str) -> dict[str, str]:
    """The setting of each JETJOBS_ variable: JETJOBS_NATS__URL is nats.url. ConfigError for an unknown one: a typo
    would otherwise go unnoticed.
    """
    ours = [name for name in names if name.startswith(PREFIX) and name not in _NOT_SETTINGS]
    keys = [name[len(PREFIX) :].lower().replace("__", ".") for name in ours]
    return {name: key for (key, name) in _checked(zip(keys, ours, strict=True), source)}


def _checked(pairs: Iterable[tuple[str, Any]], source: str) -> Iterable[tuple[str, Any]]:
    known = [key for key, _ in _flatten(Settings())]
    for key, value in pairs:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise ConfigError(
                f"unknown setting {key!r} in {source}", hint=f"did you mean {near[0]!r}?" if near else None
            )
        yield key, value


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _flatten(group: BaseModel, prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name in type(group).model_fields:
        value = getattr(group, name)
        if isinstance(value, BaseModel):
            rows.extend(_flatten(value, f"{prefix}{name}."))
        else:
            rows.append((prefix + name, value))
    return rows


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *groups, name = key.split(".")
    for group in groups:
        values = values.setdefault(group, {})
    values[name] = value


def _show(key: str, value: Any) -> str:
    if isinstance(value, SecretStr):
        return "********"
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        unit, size = next(
            ((u, n) for u, n in (("d", 86400), ("h", 3600), ("m", 60)) if seconds and seconds % n == 0), ("s", 1)
        )
        return f"{seconds / size:g}{unit}"
    if key == "nats.url":
        return show_url(value)
    return "" if value is None else str(value)
