"""A real cluster of nats-servers on loopback."""

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
    """Three nodes, or `size`. Each can be killed and restarted with its own storage and port.

    Without `advertise` a node does not name the others to its clients.
    """

    def __init__(self, folder: Path, size: int = 3, *, advertise: bool = True) -> None:
        ports = free_ports(2 * size)
        routes, self._monitors = ports[:size], ports[size:]
        hidden = "" if advertise else ", no_advertise: true"
        listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        self.nodes: list[EmbeddedServer] = []
        for number, (port, monitor) in enumerate(zip(routes, self._monitors, strict=True), 1):
            config = folder / f"n{number}.conf"
            config.write_text(
                f'server_name: n{number}\nhttp: "127.0.0.1:{monitor}"\n'
                f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{listed}]{hidden} }}\n'
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
        """Whether all know each other and one leader. Before that, the server may refuse to create streams."""
        try:
            metas = [self._meta(port) for port in self._monitors]
        except OSError:
            return False
        leaders = {meta.get("leader") for meta in metas}
        in_contact = [{peer["name"] for peer in meta.get("replicas") or [] if peer["current"]} for meta in metas]
        # The leader is in contact with all others, and each of them at least with the leader.
        others = len(self.nodes) - 1
        return len(leaders) == 1 and max(map(len, in_contact)) == others and all(in_contact)

    @staticmethod
    def _meta(port: int) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/jsz", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found.get("meta_cluster") or {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.remove()

    def follower(self) -> EmbeddedServer:
        """A node that does not lead the cluster: without it the others continue at once."""
        leader = self._meta(self._monitors[0])["leader"]
        return next(node for number, node in enumerate(self.nodes, 1) if f"n{number}" != leader)

    def named(self, name: str) -> EmbeddedServer:
        return self.nodes[int(name[1:]) - 1]

    def healthy(self) -> bool:
        """Whether every node runs and all its streams and consumers are current."""
        for port in self._monitors:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2):
                    pass
            except OSError:  # not reachable, or status 503
                return False
        return True
