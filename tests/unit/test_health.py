"""The port of a worker: what it says when, and from which thread."""

from __future__ import annotations

import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from jetjobs.model.errors import ConfigError
from jetjobs.observe.health import Health


class APort:
    def __init__(self) -> None:
        self.ready = True
        self.silent_s = 0.0
        registry = CollectorRegistry()
        Gauge("thing", "A thing", registry=registry).set(7)
        self.health = Health(registry, lambda: "" if self.ready else "no lane", lambda: self.silent_s)
        self.address = self.health.start("127.0.0.1:0")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def port() -> Iterator[APort]:
    made = APort()
    yield made
    made.health.stop()


def test_it_is_alive_until_the_loop_has_not_turned_for_thirty_seconds(port: APort) -> None:
    port.silent_s = 29.9
    assert port.get("/livez") == (200, "event loop ticked 29.9 s ago\n")
    port.silent_s = 30.0
    assert port.get("/livez")[0] == 503
    assert port.get("/readyz")[0] == 200


def test_it_is_ready_when_the_worker_says_so(port: APort) -> None:
    assert port.get("/readyz") == (200, "ready\n")
    port.ready = False
    assert port.get("/readyz") == (503, "not ready: no lane\n")
    assert port.get("/livez")[0] == 200


def test_the_page_and_nothing_else_is_served(port: APort) -> None:
    assert "thing 7.0" in port.get("/metrics")[1]
    assert port.get("/")[0] == 404


def test_a_client_that_disconnects_in_the_middle_is_not_logged(
    port: APort, capfd: pytest.CaptureFixture[str]
) -> None:
    host, _, number = port.address.rpartition(":")
    for sent in (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n"):
        with socket.create_connection((host, int(number))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
            client.sendall(sent)
    assert port.get("/readyz") == (200, "ready\n")
    port.health.stop()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("address", ["127.0.0.1:x", "nowhere", "127.0.0.1:99999", "taken"])
def test_an_address_that_cannot_be_had_is_a_mistake_of_the_settings(address: str, port: APort) -> None:
    address = port.address if address == "taken" else address
    with pytest.raises(ConfigError, match="cannot serve HTTP"):
        Health(CollectorRegistry(), lambda: "", lambda: 0.0).start(address)
