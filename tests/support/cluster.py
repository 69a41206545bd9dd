"""A real cluster of three nats-servers on loopback."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from jetjobs.devserver import EmbeddedServer


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Cluster:
    """Three nodes; each can be killed and started again on its own store and port."""

    def __init__(self, folder: Path) -> None:
        routes = free_ports(3)
        listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        self.nodes: list[EmbeddedServer] = []
        for number, port in enumerate(routes, 1):
            config = folder / f"n{number}.conf"
            config.write_text(
                f'server_name: n{number}\ncluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{listed}] }}\n'
            )
            self.nodes.append(EmbeddedServer(folder / f"store{number}", extra=("-c", str(config))))

    @property
    def url(self) -> str:
        return ",".join(node.url for node in self.nodes)

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        give_up = time.monotonic() + 30
        while not any("JetStream cluster new metadata leader" in node.log() for node in self.nodes):
            if time.monotonic() > give_up:
                raise AssertionError("no metadata leader:\n" + self.nodes[0].log()[-2000:])
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.remove()

    def named(self, name: str) -> EmbeddedServer:
        return self.nodes[int(name[1:]) - 1]
