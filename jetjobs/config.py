"""Load the settings from all sources, and record the source of each value.

The only module that reads the environment. The first source that has a value wins:
flags > JETJOBS_* > jetjobs.toml or pyproject.toml > .env (dev only) > settings given to the app > NATS_URL >
nats context > defaults. While the dev server of the folder runs, it is the server for all of them, except where
--server, --context or JETJOBS_NATS__URL names another one, and in production. ADR 47.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import socket
import tomllib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import BaseModel, SecretStr

from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import Settings, build_settings, check_urls, show_url
from jetjobs.model.wire.lenient_json import read_json

PREFIX = "JETJOBS_"
DEV_FILE = Path(".jetjobs") / "dev.json"
ENV_URL = "env JETJOBS_NATS__URL"
"""Source of the variable that names a server to every process, also beside a dev server."""
_OF_ANY_SERVER = frozenset({"inbox_prefix", "connect_timeout"})
"""Settings of the connection that also hold for the dev server, which has neither logins nor TLS."""

# Variables of jetjobs that are not settings.
_NOT_SETTINGS = frozenset({"JETJOBS_CHILD", "JETJOBS_CHILD_PORT", "JETJOBS_CONFIG", "JETJOBS_DEV"})

# Settings whose value is a table.
_TABLES = frozenset({"webhooks.secrets"})
_MASK = "********"


class LoadedSettings(NamedTuple):
    """The settings, and the source of each value by its dotted key."""

    settings: Settings
    sources: dict[str, str]
    instead_of: str = ""
    """The server that the settings name, and their source, if the dev server is used in its place."""

    @property
    def names_server(self) -> bool:
        """Whether the user names the server, or the dev server is used: settings of an app do not change it."""
        return self.sources.get("nats.url") in ("flag", ENV_URL, str(DEV_FILE))

    def in_namespace(self, namespace: str, source: str) -> LoadedSettings:
        """The same settings with a namespace that was found elsewhere."""
        queues = self.settings.queues.model_copy(update={"namespace": namespace})
        settings = self.settings.model_copy(update={"queues": queues})
        return self._replace(settings=settings, sources={**self.sources, "queues.namespace": source})

    @property
    def dev_server_note(self) -> str:
        """One line that says that the dev server of the folder is used; empty if it is not."""
        if self.sources.get("nats.url") != str(DEV_FILE):
            return ""
        instead = f", not {self.instead_of}" if self.instead_of else ""
        return f"using the dev server at {self.settings.nats.url} ({DEV_FILE}){instead}"

    def rows(self) -> list[tuple[str, str, str]]:
        """For each setting its key, its value as text with secrets masked, and its source."""
        return [
            (key, _show(key, value), self.sources.get(key, "default")) for key, value in _flatten(self.settings)
        ]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    given: Settings | None = None,
    config: Path | None = None,
    context: str | None = None,
    dotenv: bool = False,
    start: Path | None = None,
) -> LoadedSettings:
    """The settings from all sources. ConfigError names the source of an invalid value.

    `given` are the settings given to an app: the values that were set, without defaults.
    """
    where = start or Path.cwd()
    dotenv = dotenv or bool(os.environ.get("JETJOBS_DEV"))
    environ = dict(os.environ)
    layers: list[tuple[str, dict[str, Any]]] = [("default", {})]
    layers.append(_nats_context(environ, context))
    if environ.get("NATS_URL"):
        layers.append(("env NATS_URL", {"nats.url": environ["NATS_URL"]}))
    if given is not None:
        layers.append(("app", dict(_flatten(given, only_set=True))))
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
    named = context is not None or sources.get("nats.url") in ("flag", ENV_URL)
    dev = None if named or values.get("env") == "production" else find_dev_server(where)
    instead_of = "" if dev is None else _use_dev_server(dev["url"], values, sources)
    return LoadedSettings(build_settings(values, sources), sources, instead_of)


def load_for_app(given: Settings | None) -> Settings:
    """The settings of an app in a program that is not a command of jetjobs. Logs if the dev server is used."""
    loaded = load_settings(given=given)
    if note := loaded.dev_server_note:
        logging.getLogger("jetjobs.config").warning(note, extra={"event": "config.dev_server"})
    return loaded.settings


def _use_dev_server(url: str, values: dict[str, Any], sources: dict[str, str]) -> str:
    """Replace the server in `values`, with its login and TLS. Returns the replaced server and its source."""
    nats = values.get("nats", {})
    before = f"{show_url(str(nats['url']))} ({sources['nats.url']})" if nats.get("url", url) != url else ""
    values["nats"] = {key: value for key, value in nats.items() if key in _OF_ANY_SERVER} | {"url": url}
    for key in [key for key in sources if key.startswith("nats.")]:
        if key.removeprefix("nats.") not in values["nats"]:
            del sources[key]
    sources["nats.url"] = str(DEV_FILE)
    return before


def find_dev_server(start: Path) -> dict[str, Any] | None:
    """The dev server of this folder or a parent folder, if it is running."""
    for folder in (start, *start.parents):
        path = folder / DEV_FILE
        if path.is_file():
            try:
                if path.stat().st_uid != os.getuid():  # in a shared folder anybody could name a server
                    return None
                found: dict[str, Any] = read_json(path.read_text())
                check_urls(found["url"])
                return found if _is_running(found["pid"]) and _accepts(found["url"]) else None
            except (OSError, ValueError, KeyError, TypeError, OverflowError, AttributeError):
                return None
    return None


def _is_running(pid: Any) -> bool:
    """OSError if the process does not exist."""
    if type(pid) is not int or pid <= 0:  # the system takes these for groups of processes
        return False
    os.kill(pid, 0)
    return True


def _accepts(url: str) -> bool:
    """OSError if nothing listens there: the pid in an old file may be that of another process by now."""
    parts = urlsplit(url)
    with contextlib.closing(socket.create_connection((parts.hostname, parts.port or 4222), timeout=0.5)):
        return True


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
    keys = {name: name[len(PREFIX) :].lower().replace("__", ".") for name in ours}
    known = [key for key, _ in _flatten(Settings())]
    for name, key in keys.items():
        if key not in known:
            near = _nearest(key, known)
            variable = PREFIX + near.upper().replace(".", "__")
            raise ConfigError(
                f"unknown setting {key!r}: {name} in {source}", hint=f"did you mean {variable}?" if near else None
            )
    return keys


def _nearest(key: str, known: list[str]) -> str:
    """The known setting that `key` may stand for; empty if none resembles it.

    >>> [_nearest(key, ["nats.url", "nats.user", "worker.slots"]) for key in ("nats_url", "slots", "worker.slotz")]
    ['nats.url', 'worker.slots', 'worker.slots']
    """
    same = [one for one in known if key.replace(".", "_") in (one.replace(".", "_"), one.rpartition(".")[2])]
    return next(iter(same or difflib.get_close_matches(key, known, 1)), "")


def _checked(pairs: Iterable[tuple[str, Any]], source: str) -> Iterable[tuple[str, Any]]:
    known = [key for key, _ in _flatten(Settings())]
    for key, value in pairs:
        if key not in known:
            near = _nearest(key, known)
            raise ConfigError(
                f"unknown setting {key!r} in {source}", hint=f"did you mean {near!r}?" if near else None
            )
        yield key, value


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and prefix + key not in _TABLES:
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _flatten(group: BaseModel, prefix: str = "", *, only_set: bool = False) -> list[tuple[str, Any]]:
    """Each setting by its dotted key; with `only_set`, those that were passed when the group was made."""
    rows: list[tuple[str, Any]] = []
    for name in type(group).model_fields:
        if only_set and name not in group.model_fields_set:
            continue
        value = getattr(group, name)
        if isinstance(value, BaseModel):
            rows.extend(_flatten(value, f"{prefix}{name}.", only_set=only_set))
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
        return _MASK
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {_show(key, one)}" for name, one in value.items())
    if isinstance(value, tuple):
        return ", ".join(_show(key, one) for one in value)
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        unit, size = next(
            ((u, n) for u, n in (("d", 86400), ("h", 3600), ("m", 60)) if seconds and seconds % n == 0), ("s", 1)
        )
        return f"{seconds / size:g}{unit}"
    if key == "nats.url":
        return show_url(value)
    return "" if value is None else str(value)
