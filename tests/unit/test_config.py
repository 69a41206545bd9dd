"""Where settings come from, and which source wins."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from jetjobs import JetJobs
from jetjobs.config import find_dev_server, find_file, load_settings
from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import NatsSettings, QueueSettings, Settings, WorkerSettings
from jetjobs.testing.server import on_server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and an environment without variables of jetjobs."""
    for name in list(os.environ):
        if name.startswith(("JETJOBS_", "NATS_")) or name == "XDG_CONFIG_HOME":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands are run in. A jetjobs.toml above it ends the search there."""
    (tmp_path / "jetjobs.toml").write_text("")
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write_dev(folder: Path, content: Any) -> None:
    (folder / ".jetjobs").mkdir()
    (folder / ".jetjobs" / "dev.json").write_text(content if isinstance(content, str) else json.dumps(content))


def write_context(home: Path, name: str, values: Any, *, selected: bool = True) -> None:
    folder = home / ".config" / "nats" / "context"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(values))
    if selected:
        (folder.parent / "context.txt").write_text(f"{name}\n")


def url_and_source(**arguments: Any) -> tuple[str, str]:
    loaded = load_settings(**arguments)
    return loaded.settings.nats.url, loaded.sources.get("nats.url", "default")


def test_the_first_source_found_wins(project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources are added from the lowest to the highest; each one added must win over all before it."""
    assert url_and_source() == ("nats://127.0.0.1:4222", "default")
    write_context(home, "prod", {"url": "nats://context:1"})
    assert url_and_source() == ("nats://context:1", "nats context prod")
    monkeypatch.setenv("NATS_URL", "nats://plain:1")
    assert url_and_source() == ("nats://plain:1", "env NATS_URL")
    given = Settings(nats=NatsSettings(url="nats://app:1"))
    assert url_and_source(given=given) == ("nats://app:1", "app")
    (project / ".env").write_text("JETJOBS_NATS__URL=nats://dotenv:1\n")
    assert url_and_source(given=given) == ("nats://app:1", "app"), ".env is for development only"
    assert url_and_source(dotenv=True, given=given) == ("nats://dotenv:1", ".env")
    (project / "jetjobs.toml").write_text('[nats]\nurl = "nats://toml:1"\n')
    assert url_and_source(dotenv=True, given=given) == ("nats://toml:1", str(project / "jetjobs.toml"))
    monkeypatch.setenv("JETJOBS_NATS__URL", "nats://env:1")
    assert url_and_source(dotenv=True, given=given) == ("nats://env:1", "env JETJOBS_NATS__URL")
    assert url_and_source(flags={"nats.url": "nats://flag:1"}, given=given) == ("nats://flag:1", "flag")


def test_only_values_that_were_set_in_code_count(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://plain:1")
    given = Settings(nats=NatsSettings(connect_timeout=timedelta(seconds=9)), worker=WorkerSettings(slots=10))
    loaded = load_settings({"queues.lease": "9s"}, given=given)
    rows = {key: (value, source) for key, value, source in loaded.rows() if source != "default"}
    assert rows == {
        "nats.url": ("nats://plain:1", "env NATS_URL"),
        "nats.connect_timeout": ("9s", "app"),
        "queues.lease": ("9s", "flag"),
        "worker.slots": ("10", "app"),
    }, "slots was set, though to its default"


def test_a_secret_given_in_code_is_used_and_masked(project: Path) -> None:
    given = Settings(nats=NatsSettings(user="u", password=SecretStr("s3cret")))
    loaded = load_settings(given=given)
    assert loaded.settings.nats == given.nats
    assert ("nats.password", "********", "app") in loaded.rows()


def test_the_source_of_each_key_is_reported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "jetjobs.toml").write_text('env = "staging"\n[queues]\nlease = "45s"\n[worker]\nslots = 3\n')
    monkeypatch.setenv("JETJOBS_WORKER__SLOTS", "7")
    loaded = load_settings({"worker.http": ":9000", "worker.timeout": None})
    rows = {key: (value, source) for key, value, source in loaded.rows()}
    file = str(project / "jetjobs.toml")
    assert rows["env"] == ("staging", file)
    assert rows["queues.lease"] == ("45s", file)
    assert rows["worker.slots"] == ("7", "env JETJOBS_WORKER__SLOTS")
    assert rows["worker.http"] == (":9000", "flag")
    assert rows["worker.timeout"] == ("5m", "default"), "a flag that was not given is not a source"
    assert loaded.settings.queues.lease == timedelta(seconds=45)


@pytest.mark.parametrize("name", ["JETJOBS_SLOTS", "JETJOBS_WORKER_SLOTS", "JETJOBS_NATS", "JETJOBS_"])
def test_a_variable_that_would_be_ignored_is_refused(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "5")
    with pytest.raises(ConfigError, match="the environment"):
        load_settings()


def test_variables_that_are_not_settings_are_ignored(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETJOBS_CHILD", "1")
    assert url_and_source() == ("nats://127.0.0.1:4222", "default")


def test_a_wrong_value_is_refused_with_its_source(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETJOBS_WORKER__SLOTS", "many")
    with pytest.raises(ConfigError, match="JETJOBS_WORKER__SLOTS"):
        load_settings()


# Files


@pytest.mark.parametrize("source", ["jetjobs.toml", ".env", "the environment"])
def test_an_unknown_key_is_refused_with_the_nearest_name_and_its_source(
    source: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "the environment":
        monkeypatch.setenv("JETJOBS_WORKER__SLOTZ", "3")
    else:
        line = "JETJOBS_WORKER__SLOTZ=3\n" if source == ".env" else "[worker]\nslotz = 3\n"
        (project / source).write_text(line)
    with pytest.raises(ConfigError, match=rf"worker\.slotz.*{re.escape(source)}") as caught:
        load_settings(dotenv=True)
    name = "'worker.slots'" if source == "jetjobs.toml" else "JETJOBS_WORKER__SLOTS"
    assert caught.value.hint == f"did you mean {name}?"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("JETJOBS_NATS_URL", "JETJOBS_NATS__URL"),
        ("JETJOBS_URL", "JETJOBS_NATS__URL"),
        ("JETJOBS_QUEUES_MAX_RUNNING", "JETJOBS_QUEUES__MAX_RUNNING"),
        ("JETJOBS_NAMESPACE", "JETJOBS_QUEUES__NAMESPACE"),
        ("JETJOBS_WORKER_SLOTS", "JETJOBS_WORKER__SLOTS"),
    ],
)
def test_a_variable_with_one_underscore_too_few_suggests_the_right_one(
    name: str, meant: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(ConfigError, match=f"{name} in the environment") as caught:
        load_settings()
    assert caught.value.hint == f"did you mean {meant}?"


@pytest.mark.parametrize("content", [b"[worker", b"\xff\xfe", b"a = ", b"worker = 5\n"])
def test_an_unreadable_file_is_a_config_error_that_names_it(content: bytes, project: Path) -> None:
    (project / "jetjobs.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"jetjobs\.toml"):
        load_settings()


@pytest.mark.parametrize("content", ["tool = 5\n", "[tool]\njetjobs = 5\n"])
def test_a_pyproject_of_the_wrong_shape_is_a_config_error(content: str, project: Path) -> None:
    (project / "pyproject.toml").write_text(content)
    with pytest.raises(ConfigError):
        load_settings()


def test_a_named_file_that_is_not_there_is_a_config_error(project: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(config=project / "none.toml")


def test_a_file_may_be_named_by_the_environment(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "jetjobs.toml").write_text("[worker]\nslots = 1\n")
    other = tmp_path / "other.toml"
    other.write_text("[worker]\nslots = 2\n")
    monkeypatch.setenv("JETJOBS_CONFIG", str(other))
    assert find_file(project) == other
    assert load_settings().settings.worker.slots == 2


def test_pyproject_holds_settings_in_its_own_table(project: Path) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.jetjobs.worker]\nslots = 4\n')
    loaded = load_settings()
    assert loaded.settings.worker.slots == 4
    assert loaded.sources["worker.slots"] == str(project / "pyproject.toml")


def test_a_jetjobs_file_wins_over_a_pyproject_beside_it(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.jetjobs.worker]\nslots = 4\n")
    (project / "jetjobs.toml").write_text("[worker]\nslots = 5\n")
    assert load_settings().settings.worker.slots == 5


def test_the_nearest_file_upward_is_found(project: Path, tmp_path: Path) -> None:
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    assert find_file(deep) == tmp_path / "jetjobs.toml"
    (project / "jetjobs.toml").write_text("")
    assert find_file(deep) == project / "jetjobs.toml"


def test_what_is_not_ours_in_a_dotenv_is_left_alone(project: Path) -> None:
    (project / ".env").write_text("DATABASE_URL=x\nJETJOBS_WORKER__SLOTS=6\n")
    assert load_settings(dotenv=True).settings.worker.slots == 6


# The nats command line's contexts


def test_a_context_brings_credentials(project: Path, home: Path) -> None:
    values = {"url": "tls://a:1", "user": "u", "password": "p", "creds": "/c", "token": "", "ca": "/ca.pem"}
    write_context(home, "prod", values)
    nats = load_settings().settings.nats
    assert nats.password is not None
    assert (nats.url, nats.user, nats.password.get_secret_value()) == ("tls://a:1", "u", "p")
    assert (nats.creds, nats.tls_ca, nats.token) == ("/c", "/ca.pem", None)


def test_a_context_brings_keys_and_certificates(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"url": "tls://a:1", "nkey": "/n", "ca": "/ca", "cert": "/c", "key": "/k", "tls_first": True}
    write_context(home, "prod", values)
    monkeypatch.setenv("JETJOBS_NATS__NKEY", "/mine")
    loaded = load_settings()
    nats = loaded.settings.nats
    assert (nats.nkey, nats.tls_ca, nats.tls_cert, nats.tls_key) == ("/mine", "/ca", "/c", "/k")
    assert nats.tls_first
    assert loaded.sources["nats.tls_key"] == "nats context prod"
    write_context(home, "prod", {**values, "tls_first": False, "cert": "", "key": ""})
    assert load_settings().settings.nats.tls_cert is None
    assert not load_settings().settings.nats.tls_first


@pytest.mark.parametrize("key", ["creds", "nkey", "tls_key"])
def test_a_key_in_place_of_its_path_is_refused_and_not_shown(key: str, project: Path) -> None:
    for secret in ("SU" + "A" * 56, "-----BEGIN USER NKEY SEED-----\nSUAAA"):
        with pytest.raises(ConfigError, match=f"nats.{key}: .*expected the path of a file") as caught:
            load_settings({f"nats.{key}": secret, "nats.tls_cert": "/c"})
        assert "SUAA" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"nats.tls_key": "/k"}, "tls_key is set without tls_cert"),
        ({"nats.url": "ws://h:1", "nats.tls_ca": "/ca"}, "use wss://"),
    ],
)
def test_settings_for_tls_that_contradict_each_other_are_refused(
    flags: dict[str, str], expected: str, project: Path
) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_settings(flags)


def test_a_context_may_be_chosen_by_argument_or_environment(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        write_context(home, name, {"url": f"nats://{name}:1"}, selected=name == "one")
    assert url_and_source()[0] == "nats://one:1"
    monkeypatch.setenv("NATS_CONTEXT", "two")
    assert url_and_source()[0] == "nats://two:1"
    assert url_and_source(context="three") == ("nats://three:1", "nats context three")


def test_a_context_that_was_asked_for_must_be_there(project: Path) -> None:
    with pytest.raises(ConfigError, match="'prod'"):
        load_settings(context="prod")


def test_a_selected_context_that_is_gone_is_passed_over(project: Path, home: Path) -> None:
    write_context(home, "gone", {})
    (home / ".config" / "nats" / "context" / "gone.json").unlink()
    assert url_and_source()[1] == "default"


def test_a_context_of_the_wrong_shape_is_a_config_error(project: Path, home: Path) -> None:
    write_context(home, "odd", ["nats://a:1"])
    with pytest.raises(ConfigError, match="'odd'"):
        load_settings(context="odd")


# The dev server's file


def dead_pid() -> int:
    """The pid of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture
def dev_url(project: Path) -> Iterator[str]:
    """The URL of a port that accepts connections, as the project's dev server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"nats://127.0.0.1:{listening.getsockname()[1]}"
        write_dev(project, {"url": url, "pid": os.getpid()})
        yield url


def test_a_dev_server_is_found_from_folders_below(project: Path, dev_url: str) -> None:
    below = project / "a" / "b"
    below.mkdir(parents=True)
    assert find_dev_server(below) == {"url": dev_url, "pid": os.getpid()}
    assert load_settings(start=below).settings.nats.url == dev_url


def test_a_dev_server_wins_over_all_but_an_explicit_server(
    project: Path, home: Path, dev_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings().dev_server_note == f"using the dev server at {dev_url} (.jetjobs/dev.json)"
    write_context(home, "prod", {"url": "nats://context:1", "user": "u", "password": "p"})
    monkeypatch.setenv("NATS_URL", "nats://plain:1")
    (project / ".env").write_text("JETJOBS_NATS__URL=nats://dotenv:1\n")
    (project / "jetjobs.toml").write_text('[nats]\nurl = "tls://u:s3cret@toml:1"\ntls_ca = "/ca"\n')
    monkeypatch.setenv("JETJOBS_NATS__CREDS", "/creds")
    given = Settings(nats=NatsSettings(url="nats://app:1", token=SecretStr("t"), inbox_prefix="_INBOX_a"))
    loaded = load_settings({"nats.connect_timeout": "9s"}, given=given, dotenv=True)
    kept = NatsSettings(url=dev_url, inbox_prefix="_INBOX_a", connect_timeout=timedelta(seconds=9))
    assert loaded.settings.nats == kept, "without the login and TLS of other servers"
    instead = f"not tls://toml:1 ({project / 'jetjobs.toml'})"
    assert loaded.dev_server_note == f"using the dev server at {dev_url} (.jetjobs/dev.json), {instead}"
    assert url_and_source(flags={"nats.url": "nats://flag:1"})[0] == "nats://flag:1"
    assert url_and_source(context="prod")[1] == str(project / "jetjobs.toml")
    monkeypatch.setenv("JETJOBS_NATS__URL", "nats://env:1")
    assert url_and_source() == ("nats://env:1", "env JETJOBS_NATS__URL")


def test_a_dev_server_is_not_used_in_production(
    project: Path, dev_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert url_and_source(given=Settings(env="production"))[1] == "default"
    monkeypatch.setenv("JETJOBS_ENV", "production")
    assert url_and_source()[1] == "default"


def test_a_dev_server_that_has_ended_is_ignored(project: Path, dev_url: str) -> None:
    (project / ".jetjobs" / "dev.json").write_text(json.dumps({"url": dev_url, "pid": dead_pid()}))
    assert find_dev_server(project) is None
    assert url_and_source()[1] == "default"


def test_a_dev_server_whose_pid_belongs_to_another_process_by_now_is_ignored(project: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        write_dev(project, {"url": f"nats://127.0.0.1:{closed.getsockname()[1]}", "pid": os.getpid()})
        assert url_and_source()[1] == "default"


def test_the_file_of_another_user_is_ignored(project: Path, dev_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert url_and_source()[1] == "default"


def test_a_program_logs_that_it_uses_the_dev_server(
    project: Path, dev_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = JetJobs("shop", settings=Settings(nats=NatsSettings(url="nats://app:1")))
    assert [app.settings.nats.url, app.settings.nats.url] == [dev_url] * 2
    text = f"using the dev server at {dev_url} (.jetjobs/dev.json), not nats://app:1 (app)"
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [("WARNING", text)]
    mine = Settings(nats=NatsSettings(url="nats://mine:1"))
    app.configure(mine)
    assert app.settings == mine, "settings of `configure` are final"


def test_the_server_of_a_test_is_used_beside_a_dev_server(
    project: Path, dev_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = JetJobs("shop", settings=Settings(queues=QueueSettings(namespace="store")))
    with on_server(app, "nats://test:1"):
        assert (app.settings.nats.url, app.namespace) == ("nats://test:1", "store")
    assert caplog.records == []
    assert app.settings.nats.url == dev_url


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "5",
        '"text"',
        "null",
        '{"url": "nats://dev:1"}',
        '{"url": "nats://dev:1", "pid": "x"}',
        '{"url": "nats://dev:1", "pid": null}',
        '{"url": "nats://dev:1", "pid": 99999999999999999999999}',
        f'{{"pid": {os.getpid()}}}',
        '{"url": "nats://dev:1", "pid": -1}',
        '{"url": "nats://dev:1", "pid": 0}',
        '{"url": "nats://dev:1", "pid": true}',
        f'{{"url": "", "pid": {os.getpid()}}}',
        f'{{"url": "nats://dev:x", "pid": {os.getpid()}}}',
        f'{{"url": 5, "pid": {os.getpid()}}}',
    ],
    ids=range(17),
)
def test_a_broken_dev_file_is_ignored(content: str, project: Path) -> None:
    write_dev(project, content)
    assert url_and_source() == ("nats://127.0.0.1:4222", "default")


@pytest.mark.parametrize(
    "url", ["", " ", ":", "nats://", "nats://h:port", "nats://h:99999", "nats://[::1", "nats://a:1,,b", "h:x"]
)
def test_an_invalid_server_url_is_refused_with_its_source_and_not_printed(url: str, project: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({"nats.url": url})
    text = "invalid settings: nats.url: Value error, invalid server URL: "
    text += "use nats://HOST:PORT, several separated by commas"
    assert str(caught.value) == f"{text} (from flag)"


@pytest.mark.parametrize(
    "url", ["nats://h:1", "h", "h:1", "127.0.0.1:1", "nats://u:p%2F@h", "tls://[::1]:4222", "ws://h", "a:1, b:2"]
)
def test_every_url_that_the_client_takes_is_taken(url: str, project: Path) -> None:
    assert load_settings({"nats.url": url}).settings.nats.url == url


# Secrets


def shown(key: str, flags: dict[str, Any]) -> str:
    return next(value for name, value, _ in load_settings(flags).rows() if name == key)


@pytest.mark.parametrize("key", ["nats.password", "nats.token"])
def test_secrets_are_masked_in_rows(key: str, project: Path) -> None:
    assert shown(key, {key: "s3cret"}) == "********"
    assert shown(key, {}) == ""


SECRET_URLS = [
    "nats://user:s3cret@host:4222",
    "nats://a:1,nats://user:s3cret@host:4222",
    "nats://user:s3cret@a:1,nats://user:s3cret@b:1",
    "nats://user:s3cr@s3cret@host:4222",
    "nats://s3cret@host:4222",
    "user:s3cret@host:4222",
]


@pytest.mark.parametrize("url", SECRET_URLS)
def test_a_password_or_token_within_a_url_is_never_shown(url: str, project: Path) -> None:
    text = shown("nats.url", {"nats.url": url})
    assert "s3cret" not in text
    assert "host" in text or "b:1" in text


def test_a_url_without_secrets_is_shown_whole(project: Path) -> None:
    assert shown("nats.url", {"nats.url": "nats://a:1,tls://b:2"}) == "nats://a:1,tls://b:2"
