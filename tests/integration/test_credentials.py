"""Logins: each kind connects, and a problem with one is named before or while connecting."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.admin import Finding
from jetjobs.doctor.runner import run_checks
from jetjobs.jetstream.transport.secure_client import SecureClient
from jetjobs.model.errors import AccessDenied, ConfigError
from jetjobs.model.events import ConnectionLost, ConnectionRestored
from jetjobs.model.settings import build_settings
from jetjobs.model.wire.subjects import Names
from tests.support.probe import Probe
from tests.support.tls import USER, Authority, ConfiguredServer, Operator, new_key
from tests.support.workers import provisioned, running

Login = Callable[[Path], tuple[str, dict[str, Any]]]


def password(folder: Path) -> tuple[str, dict[str, Any]]:
    return 'authorization { user: shop, password: "word" }', {"user": "shop", "password": "word"}


def token(folder: Path) -> tuple[str, dict[str, Any]]:
    return 'authorization { token: "t0ken" }', {"token": "t0ken"}


def nkey(folder: Path) -> tuple[str, dict[str, Any]]:
    key = new_key(USER)
    (folder / "worker.nk").write_text(key.seed + "\n")
    return f"authorization {{ users: [{{ nkey: {key.public} }}] }}", {"nkey": str(folder / "worker.nk")}


def creds(folder: Path) -> tuple[str, dict[str, Any]]:
    operator = Operator()
    return operator.config, {"creds": operator.creds(folder / "worker.creds")}


def read(path: Path) -> str:
    return path.read_text()


def write(path: Path, text: str) -> None:
    path.write_text(text)


def app_for(server: ConfiguredServer, nats: dict[str, Any]) -> JetJobs:
    app = JetJobs("t", settings=build_settings({"nats": {"url": server.url, **nats}}))

    @app.task
    async def work(n: int = 0) -> int:
        return n

    return app


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("kind", [password, token, nkey, creds])
async def test_a_worker_logs_in(tmp_path: Path, kind: Login, encrypted: bool) -> None:
    config, login = kind(tmp_path)
    if encrypted:
        authority = Authority(tmp_path)
        config, login = config + "\n" + authority.block(), {**login, "tls_ca": authority.ca}
    with ConfiguredServer(tmp_path, config) as server:
        probe = Probe()
        app = app_for(server, login)
        app.observe(probe)
        async with provisioned(app), running(app.worker(slots=1)):
            server.kill()
            server.start()
            await probe.wait(ConnectionRestored)
            assert await (await app.tasks["work"].enqueue(n=3)).result() == 3
            assert [c["name"] for c in server.clients() if encrypted and not c.get("tls_version")] == []


@pytest.mark.parametrize("kind", [password, token, nkey, creds])
async def test_a_wrong_login_is_named_at_once(tmp_path: Path, kind: Login) -> None:
    config, _ = kind(tmp_path)
    (tmp_path / "other").mkdir()
    _, login = kind(tmp_path / "other")
    wrong = {key: value if key in ("nkey", "creds") else f"{value}-not" for key, value in login.items()}
    with ConfiguredServer(tmp_path, config) as server:
        async with asyncio.timeout(2):
            with pytest.raises(AccessDenied, match="refused the credentials"):
                await app_for(server, wrong).open()


@pytest.mark.parametrize("kind", [nkey, creds])
async def test_a_key_is_read_again_for_each_connection(tmp_path: Path, kind: Login) -> None:
    """A file that is being replaced does not end the reconnects: it is named once, and the new one is used."""
    config, login = kind(tmp_path)
    path = Path(*login.values())
    good = read(path)
    with ConfiguredServer(tmp_path, config) as server:
        probe = Probe()
        app = app_for(server, login)
        app.observe(probe)
        async with app:
            write(path, "half of a fi")
            server.kill()
            server.start()
            lost = await probe.wait(ConnectionLost, where=lambda e: str(path) in e.error)
            assert len(lost) == 1
            write(path, good)
            await probe.wait(ConnectionRestored)
            assert not [e for e in probe.of(ConnectionLost) if "SU" in e.error]


@pytest.mark.parametrize("kind", [nkey, creds])
async def test_the_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, kind: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, login = kind(tmp_path)
    with ConfiguredServer(tmp_path, config) as server:
        monkeypatch.setitem(sys.modules, "nkeys", None)
        with pytest.raises(ConfigError, match=f"^nats.{next(iter(login))} needs the package nkeys\\n") as caught:
            await app_for(server, login).open()
        assert caught.value.hint == 'pip install "jetjobs[nkeys]"'


async def test_the_doctor_reports_credentials_that_cannot_be_read(tmp_path: Path) -> None:
    settings = build_settings({"nats": {"creds": str(tmp_path / "none.creds")}})
    found: list[Finding] = await run_checks(settings, Names("jobs"), only=["nats"])
    assert [(f.level, f.check) for f in found] == [("fail", "reach")]
    assert "none.creds cannot be read" in found[0].text


@pytest.mark.parametrize(
    ("kind", "peer", "encrypted", "level"),
    [
        (password, "10.0.0.5", False, "warn"),
        (creds, "10.0.0.5", False, "warn"),
        (password, "10.0.0.5", True, "ok"),
        (password, None, False, "ok"),
        (None, "10.0.0.5", False, "ok"),
    ],
)
async def test_the_doctor_warns_of_a_login_without_tls_to_another_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Login | None,
    peer: str | None,
    encrypted: bool,
    level: str,
) -> None:
    config, given = kind(tmp_path) if kind is not None else ("", {})
    if encrypted:
        authority = Authority(tmp_path)
        config, given = config + "\n" + authority.block(), {**given, "tls_ca": authority.ca}
    if peer is not None:  # the test's server is on this machine, as far as the client knows it is not
        monkeypatch.setattr(SecureClient, "peer_host", peer)
    with ConfiguredServer(tmp_path, config) as server:
        found = await run_checks(
            build_settings({"nats": {"url": server.url, **given}}), Names("jobs"), only=["nats"]
        )
        [one] = [finding for finding in found if finding.check == "login"]
        assert (one.level, "without TLS" in one.text) == (level, level == "warn")
        assert "word" not in one.text
