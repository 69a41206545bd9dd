"""A server with the users of the example configuration enabled."""

from __future__ import annotations

import re
from pathlib import Path

from jetjobs import Settings
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.settings import build_settings

EXAMPLE = Path(__file__).parents[2] / "nats-server.conf"


def roles_config(folder: Path) -> Path:
    """Write a configuration with the users of the example, each with the password `secret`."""
    example = EXAMPLE.read_text()
    lines = example[example.index("# authorization {") :].split("\n\n")[0].splitlines()
    rules = "\n".join(line.removeprefix("#") for line in lines if not line.startswith("# Give each"))
    rules = re.sub(r"\$JOBS_\w+_PASSWORD", '"secret"', rules)
    config = folder / "roles.conf"
    config.write_text(rules + "\n")
    return config


class GuardedServer(EmbeddedServer):
    """A server with the users and permissions of the example."""

    def __init__(self, folder: Path) -> None:
        super().__init__(extra=("-c", str(roles_config(folder))))

    def settings_of(self, role: str) -> Settings:
        """The settings of an app that connects in that role."""
        login = {"user": role, "password": "secret", "inbox_prefix": f"_INBOX_{role}"}
        return build_settings({"nats": {"url": self.url, **login}})
