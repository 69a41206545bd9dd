"""TLS: what connects, what is refused before a login is sent, and how a failure is named."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.errors import StaleConnectionError

from jetjobs import JetJobs
from jetjobs.model.errors import AccessDenied, BrokerUnavailable, ConfigError, JetJobsError
from jetjobs.model.events import ConnectionLost, ConnectionRestored
from jetjobs.model.settings import build_settings
from tests.support.probe import Probe, wait_until
from tests.support.proxy import Proxy
from tests.support.roles import EXAMPLE, roles_config
from tests.support.tls import USER, Authority, ConfiguredServer, Operator, new_key
from tests.support.workers import provisioned, running

SECRET = "s3cret-word"
LOGIN = f'authorization {{ user: shop, password: "{SECRET}" }}'
LOOPS = ["asyncio", "uvloop"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], ConfiguredServer]]:
    """Start servers with a configuration each."""
    with contextlib.ExitStack() as stack:

        def start(config: str) -> ConfiguredServer:
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            return stack.enter_context(ConfiguredServer(folder, config))

        yield start


def app_for(url: str, **nats: Any) -> JetJobs:
    app = JetJobs("t", settings=build_settings({"nats": {"url": url, **nats}}))

    @app.task
    async def work(n: int = 0) -> int:
        return n

    return app


async def refused(kind: type[JetJobsError], url: str, **nats: Any) -> str:
    """The error of connecting, with its hint, which must come within two seconds."""
    with pytest.raises(JetJobsError) as caught:
        async with asyncio.timeout(2):
            await app_for(url, **nats).open()
    assert type(caught.value) is kind, repr(caught.value)
    assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    return f"{caught.value} → {caught.value.hint}"


# What connects


async def check_encrypted(server: ConfiguredServer, app: JetJobs) -> None:
    """A worker runs a job, and every connection of its, also that of the heartbeats, uses TLS on the server."""
    async with provisioned(app), running(app.worker(slots=2)):
        await (await app.tasks["work"].enqueue(n=3)).result()
        await wait_until(lambda: len(server.clients()) >= 2)
        found = server.clients()
        assert [client["name"] for client in found if not client.get("tls_version")] == []
        assert any(client["name"].endswith("heartbeats") for client in found)


@pytest.mark.parametrize(
    "given", ["tls://", "tls_ca", "tls://localhost", "password", "available", "tls_first", "tls_hostname"]
)
async def test_a_worker_connects_with_tls(
    authority: Authority, serve: Callable[[str], ConfiguredServer], given: str
) -> None:
    names = ("jobs.example",) if given == "tls_hostname" else ()
    options = {"handshake_first": True} if given == "tls_first" else {}
    more = "allow_non_tls: true\n" if given == "available" else ""
    server = serve(authority.block(*names, **options) + more + LOGIN)
    url = {"tls_ca": server.plain_url, "tls://localhost": server.tls_url.replace("127.0.0.1", "localhost")}
    nats: dict[str, Any] = {"user": "shop", "password": SECRET, "tls_ca": authority.ca}
    if given in ("tls_first", "tls_hostname"):
        nats[given] = {"tls_first": True, "tls_hostname": "jobs.example"}[given]
    await check_encrypted(server, app_for(url.get(given, server.tls_url), **nats))


@pytest.mark.parametrize("in_one_file", [False, True])
async def test_a_worker_connects_with_a_client_certificate(
    authority: Authority, serve: Callable[[str], ConfiguredServer], in_one_file: bool
) -> None:
    server = serve(authority.block(verify=True))
    pair = authority.issue("worker@example.com", file="client", in_one_file=in_one_file)
    keys = {"tls_cert": pair.cert} if in_one_file else {"tls_cert": pair.cert, "tls_key": pair.key}
    await check_encrypted(server, app_for(server.tls_url, tls_ca=authority.ca, **keys))


async def test_a_server_that_also_allows_plain_clients_asks_them_for_no_certificate(
    authority: Authority, serve: Callable[[str], ConfiguredServer]
) -> None:
    server = serve(authority.block(verify=True) + "allow_non_tls: true\n")
    async with app_for(server.plain_url):
        assert [client["name"] for client in server.clients() if not client.get("tls_version")] == ["jetjobs-t"]


def example_tls_block(folder: Path, authority: Authority) -> str:
    """The block of the example configuration, enabled as its comment says, with files made here."""
    text = EXAMPLE.read_text()
    block = "\n".join(line.removeprefix("# ") for line in text[text.index("# tls {") :].splitlines())
    for name, path in zip(("server.pem", "server.key"), authority.issue("127.0.0.1"), strict=True):
        block = block.replace(f'"/etc/nats/{name}"', f'"{path}"')
    return block.replace('"/etc/nats/ca.pem"', f'"{authority.ca}"')


async def test_the_tls_block_of_the_example_works_with_its_users(
    tmp_path: Path, authority: Authority, serve: Callable[[str], ConfiguredServer]
) -> None:
    server = serve(roles_config(tmp_path).read_text() + example_tls_block(tmp_path, authority))
    pair = authority.issue("worker@example.com", file="client")
    tls = {"tls_ca": authority.ca, "tls_cert": pair.cert, "tls_key": pair.key}
    for role in ("setup", "worker", "producer", "operator"):
        login = {"user": role, "password": "secret", "inbox_prefix": f"_INBOX_{role}"}
        async with app_for(server.tls_url, **tls, **login) as app:
            if role == "setup":
                await app.provision()
            assert app.jetstream.connection.nc.encrypted
    assert "requires a client certificate" in await refused(AccessDenied, server.tls_url, tls_ca=authority.ca)


# A server without TLS gets nothing


class Stripping(Proxy):
    """Removes TLS from the greeting of the server while `strips` is set, and records what clients send."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.strips = True
        self.seen = bytearray()
        self.to_client = self._strip
        self.to_server = self._record

    def _strip(self, data: bytes) -> bytes:
        return re.sub(rb'"tls_(required|available|verify)":true,', b"", data) if self.strips else data

    def _record(self, data: bytes) -> bytes:
        if self.strips:
            self.seen += data
        return data


@contextlib.asynccontextmanager
async def stripping(target: str) -> AsyncIterator[Stripping]:
    proxy = Stripping(target)
    async with proxy.running():
        yield proxy


def seed_file(path: Path) -> str:
    path.write_text(new_key(USER).seed)
    return str(path)


def logins(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        "password": {"user": "shop", "password": SECRET},
        "token": {"token": SECRET},
        "creds": {"creds": Operator().creds(folder / "w.creds")},
        "nkey": {"nkey": seed_file(folder / "w.nk")},
        "url": {},
    }


@pytest.mark.parametrize("login", ["password", "token", "creds", "nkey", "url"])
@pytest.mark.parametrize("required_by", ["tls://", "tls_ca"])
async def test_a_proxy_that_strips_tls_gets_no_byte(
    tmp_path: Path, authority: Authority, serve: Callable[[str], ConfiguredServer], required_by: str, login: str
) -> None:
    server = serve(authority.block() + LOGIN)
    async with stripping(server.plain_url) as proxy:
        url = f"nats://shop:{SECRET}@{proxy.url[7:]}" if login == "url" else proxy.url
        nats = {"tls_ca": authority.ca} if required_by == "tls_ca" else {}
        url = url if required_by == "tls_ca" else url.replace("nats://", "tls://")
        error = await refused(BrokerUnavailable, url, **nats, **logins(tmp_path)[login])
        assert "does not offer TLS" in error
        assert bytes(proxy.seen) == b""


@pytest.mark.parametrize("required_by", ["tls_first", "tls_hostname", "the other URL"])
async def test_a_server_without_tls_gets_no_login(
    serve: Callable[[str], ConfiguredServer], required_by: str
) -> None:
    server = serve(LOGIN)
    async with stripping(server.plain_url) as proxy:
        nats: dict[str, Any] = {"tls_first": {"tls_first": True}, "tls_hostname": {"tls_hostname": "jobs.example"}}
        url = f"{proxy.url},tls://127.0.0.1:1" if required_by == "the other URL" else proxy.url
        await refused(BrokerUnavailable, url, user="shop", password=SECRET, **nats.get(required_by, {}))
        assert SECRET.encode() not in proxy.seen
        assert b"CONNECT" not in proxy.seen


@pytest.mark.parametrize("loop", LOOPS)
def test_a_server_that_has_lost_tls_is_refused_at_a_reconnect_and_reported_once(
    tmp_path: Path, authority: Authority, serve: Callable[[str], ConfiguredServer], loop: str
) -> None:
    server = serve(authority.block() + LOGIN)

    async def play() -> None:
        probe = Probe()
        async with stripping(server.plain_url) as proxy:
            proxy.strips = False
            app = app_for(proxy.url, user="shop", password=SECRET, tls_ca=authority.ca)
            app.observe(probe)
            async with provisioned(app):
                proxy.strips = True
                proxy.cut()
                why = lambda event: "does not offer TLS" in event.error  # noqa: E731
                await probe.wait(ConnectionLost, where=why)
                tries = app.jetstream.connection.nc._server_pool[0].reconnects
                await wait_until(lambda: app.jetstream.connection.nc._server_pool[0].reconnects >= tries + 3)
                assert len(probe.of(ConnectionLost, why)) == 1
                assert bytes(proxy.seen) == b""
                proxy.strips = False
                await probe.wait(ConnectionRestored)
                await app.tasks["work"].enqueue(n=1)
            assert bytes(proxy.seen) == b""

    run_on(loop, play)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_is_buffered_is_not_written_before_the_handshake(
    authority: Authority, serve: Callable[[str], ConfiguredServer], loop: str
) -> None:
    """nats-py writes its buffer when it is closed, to any socket."""
    server = serve(authority.block())

    async def play() -> None:
        async with stripping(server.plain_url) as proxy:
            proxy.strips = False
            app = app_for(proxy.url, tls_ca=authority.ca)
            await app.open()
            client = app.jetstream.connection.nc
            proxy.strips = True
            proxy.hold()  # connections are accepted, and the greeting of the server does not arrive
            proxy.cut()
            await wait_until(lambda: client.peer_host and not client.encrypted)
            client._pending.append(b"PUB a 3\r\njob\r\n")  # as written before the loss was noticed
            client._pending_data_size += 12
            await app.close()
            proxy.resume()
            await wait_until(lambda: not proxy._writers)
            assert bytes(proxy.seen) == b""

    run_on(loop, play)


def run_on(loop: str, play: Callable[[], Any]) -> None:
    if loop == "asyncio":
        asyncio.run(play())
        return
    import uvloop

    uvloop.run(play())


async def test_a_restarted_server_is_reached_with_tls_again(
    authority: Authority, serve: Callable[[str], ConfiguredServer]
) -> None:
    server = serve(authority.block() + LOGIN)
    probe = Probe()
    app = app_for(server.tls_url, user="shop", password=SECRET, tls_ca=authority.ca)
    app.observe(probe)
    async with provisioned(app):
        server.kill()
        server.start()
        await probe.wait(ConnectionRestored)
        assert [client["tls_version"] for client in server.clients()] == ["1.3"]
        lost = probe.of(ConnectionLost)
        assert len(lost) == 1, lost


@pytest.mark.parametrize("loop", LOOPS)
def test_a_silent_network_does_not_delay_the_end_of_a_lost_connection(
    authority: Authority, serve: Callable[[str], ConfiguredServer], loop: str
) -> None:
    """The end of TLS is announced to the other side, and asyncio waits for its answer."""
    server = serve(authority.block())

    async def play() -> None:
        proxy, probe = Proxy(server.plain_url), Probe()
        async with proxy.running():
            app = app_for(proxy.url, tls_ca=authority.ca)
            app.observe(probe)
            async with app:
                proxy.hold()
                await app.jetstream.connection.nc._process_op_err(StaleConnectionError())
                await probe.wait(ConnectionLost, timeout=3)
                proxy.resume()
                await probe.wait(ConnectionRestored)

    run_on(loop, play)


async def test_renewed_files_are_used_by_the_next_connection(
    tmp_path: Path, authority: Authority, serve: Callable[[str], ConfiguredServer]
) -> None:
    """The client's certificate and the CA are replaced in place, and the server only accepts the new ones."""
    server = serve(authority.block(verify=True))
    pair = authority.issue("worker@example.com", file="client")
    probe = Probe()
    app = app_for(server.tls_url, tls_ca=authority.ca, tls_cert=pair.cert, tls_key=pair.key)
    app.observe(probe)
    async with app:
        server.kill()
        renewed = Authority(tmp_path)  # in the same files
        server.configure(renewed.block(verify=True))
        await probe.wait(ConnectionLost)
        server.start()
        await probe.wait(ConnectionLost, where=lambda event: "refused the client certificate" in event.error)
        renewed.issue("worker@example.com", file="client")
        await probe.wait(ConnectionRestored)
        assert [client["tls_version"] for client in server.clients()] == ["1.3"]


# Failures are named


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("case", ["ca", "no ca", "host", "hostname", "expired", "future"])
def test_a_certificate_that_does_not_fit_is_named(
    tmp_path: Path, authority: Authority, serve: Callable[[str], ConfiguredServer], case: str, loop: str
) -> None:
    names = ("other.example", "10.1.2.3") if case.startswith("host") else ("127.0.0.1",)
    block = authority.block(*names)
    validity = {"expired": (-3, -1), "future": (2, 30)}.get(case)
    if validity:
        authority.issue(*names, begins_in=validity[0], ends_in=validity[1])
    server = serve(block + LOGIN)
    other = Authority(tmp_path, "other").ca
    expected = {
        "ca": f"is not signed by a CA in {other} → set nats.tls_ca",
        "no ca": "is not signed by a CA in the trust store of the system → set nats.tls_ca",
        "host": r"is for other.example, 10.1.2.3, not for 127.0.0.1 → .* nats.tls_hostname",
        "hostname": "is for other.example, 10.1.2.3, not for jobs.example",
        "expired": r"expired on 20\d\d-\d\d-\d\d → renew it",
        "future": r"is not valid before 20\d\d-\d\d-\d\d → correct the clock",
    }[case]
    nats = {} if case == "no ca" else {"tls_ca": other if case == "ca" else authority.ca}
    nats |= {"tls_hostname": "jobs.example"} if case == "hostname" else {}

    async def play() -> None:
        error = await refused(BrokerUnavailable, server.tls_url, user="shop", password=SECRET, **nats)
        assert re.search(expected, error), error
        assert f"the certificate of tls://{server.address}" in error

    run_on(loop, play)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("given", ["none", "other CA", "expired"])
def test_a_client_certificate_that_the_server_refuses_is_named(
    tmp_path: Path,
    authority: Authority,
    serve: Callable[[str], ConfiguredServer],
    given: str,
    first: bool,
    loop: str,
) -> None:
    server = serve(authority.block(verify=True, handshake_first=first) + LOGIN)
    pair = authority.issue("w@example.com", file="client", begins_in=-3, ends_in=-1)
    if given == "other CA":
        pair = Authority(tmp_path, "other").issue("w@example.com", file="client")
    nats = {"tls_cert": pair.cert, "tls_key": pair.key} if given != "none" else {}

    async def play() -> None:
        login = {"user": "shop", "password": SECRET, "tls_first": first}
        error = await refused(AccessDenied, server.tls_url, tls_ca=authority.ca, **login, **nats)
        if given == "none":
            assert "requires a client certificate → set nats.tls_cert and nats.tls_key" in error
        else:
            assert f"refused the client certificate {pair.cert}" in error

    run_on(loop, play)


async def test_a_server_that_does_not_begin_with_tls_is_named(
    authority: Authority, serve: Callable[[str], ConfiguredServer]
) -> None:
    server = serve(authority.block())
    error = await refused(BrokerUnavailable, server.tls_url, tls_ca=authority.ca, tls_first=True)
    assert "does not begin with a TLS handshake → unset nats.tls_first" in error


async def test_a_server_that_waits_for_the_handshake_is_named(
    authority: Authority, serve: Callable[[str], ConfiguredServer]
) -> None:
    server = serve(authority.block(handshake_first=True, timeout=0.3))
    with pytest.raises(BrokerUnavailable, match="it closes the connection without a greeting") as caught:
        await app_for(server.tls_url, tls_ca=authority.ca, connect_timeout="1s").open()
    assert caught.value.hint == "if its tls block has handshake_first, set nats.tls_first"


async def test_one_server_of_several_with_a_wrong_certificate_is_passed_over(
    tmp_path: Path, authority: Authority, serve: Callable[[str], ConfiguredServer]
) -> None:
    bad = serve(Authority(tmp_path, "other").block())
    good = serve(authority.block())
    for _ in range(4):  # nats-py tries them in random order
        async with app_for(f"{bad.tls_url},{good.tls_url}", tls_ca=authority.ca) as app:
            assert app.jetstream.connection.nc.where == good.tls_url
    all_bad = ",".join([bad.tls_url, *(serve(Authority(tmp_path, n).block()).tls_url for n in ("b", "c", "d"))])
    assert "is not signed by a CA" in await refused(BrokerUnavailable, all_bad, tls_ca=authority.ca)


async def test_a_missing_file_is_named_before_connecting(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    error = await refused(ConfigError, "tls://127.0.0.1:1", tls_ca=missing)
    assert f"nats.tls_ca: {missing} cannot be read: No such file" in error


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_servers_that_the_cluster_names_by_address_must_have_a_fitting_certificate(
    authority: Authority, serve: Callable[[str], ConfiguredServer], host: str
) -> None:
    """Of the host name that was configured, or, if an address was, of their own address."""
    server = serve(authority.block())
    proxy = Proxy(server.plain_url)
    proxy.to_client = lambda data: data.replace(
        b'"tls_required"', b'"connect_urls":["10.0.0.9:4222"],"tls_required"'
    )
    async with (
        proxy.running(),
        app_for(proxy.url.replace("nats://127.0.0.1", f"tls://{host}"), tls_ca=authority.ca) as app,
    ):
        [found] = [one for one in app.jetstream.connection.nc._server_pool if one.discovered]
        assert found.uri.geturl() == "tls://10.0.0.9:4222"
        assert found.tls_name == {"127.0.0.1": None, "localhost": "localhost"}[host]
