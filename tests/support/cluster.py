"""A real cluster of three nats-servers on loopback."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jetjobs.dev_server import EmbeddedServer


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
    """Three nodes. Each can be killed and restarted with its own storage and port."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(6)
        routes, self._monitors = ports[:3], ports[3:]
        listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        self.nodes: list[EmbeddedServer] = []
        for number, (port, monitor) in enumerate(zip(routes, self._monitors, strict=True), 1):
            config = folder / f"n{number}.conf"
            config.write_text(
                f'server_name: n{number}\nhttp: "127.0.0.1:{monitor}"\n'
                f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{listed}] }}\n'
            )
            self.nodes.append(EmbeddedServer(folder / f"store{number}", extra=("-c", str(config))))

    @property
    def url(self) -> str:
        return ",".join(node.url for node in self.nodes)

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        give_up = time.monotonic() + 40
        while not self._formed():
            if time.monotonic() > give_up:
                raise AssertionError("no cluster:\n" + "\n".join(node.log()[-2000:] for node in self.nodes))
            time.sleep(0.05)
        return self

    def _formed(self) -> bool:
        """Whether all three know each other and one leader. Before that, streams get one replica only."""
        try:
            metas = [self._meta(port) for port in self._monitors]
            knows_all = all(len(self._greeting(node).get("connect_urls", [])) == 3 for node in self.nodes)
        except OSError:
            return False
        leaders = {meta.get("leader") for meta in metas}
        in_contact = [{peer["name"] for peer in meta.get("replicas") or [] if peer["current"]} for meta in metas]
        # The leader is in contact with both others, and each of them at least with the leader.
        return knows_all and len(leaders) == 1 and max(map(len, in_contact)) == 2 and all(in_contact)

    @staticmethod
    def _meta(port: int) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/jsz", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found.get("meta_cluster") or {}

    @staticmethod
    def _greeting(node: EmbeddedServer) -> dict[str, Any]:
        """The INFO that the node sends to new connections."""
        port = int(node.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), 5) as one, one.makefile() as lines:
            found: dict[str, Any] = json.loads(lines.readline().removeprefix("INFO "))
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.remove()

    def named(self, name: str) -> EmbeddedServer:
        return self.nodes[int(name[1:]) - 1]
