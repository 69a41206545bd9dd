"""A server with the users of the example configuration enabled."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jetjobs import Settings
from jetjobs.dev_server import EmbeddedServer
from tests.support.server import server_settings

EXAMPLE = Path(__file__).parents[2] / "nats-server.conf"


class Removed(NamedTuple):
    """A permission of the example that a role does not have."""

    role: str
    verb: Literal["publish", "subscribe"]
    subject: str
    """One of the role's list is removed from it; any other is denied."""


def roles_config(folder: Path, removed: Sequence[Removed] = ()) -> Path:
    """Write a configuration with the users of the example, each with the password `secret`, and with the user
    `root`, who may do everything."""
    example = EXAMPLE.read_text()
    lines = example[example.index("# authorization {") :].split("\n\n")[0].splitlines()
    rules = "\n".join(line.removeprefix("#") for line in lines if not line.startswith("# Give each"))
    rules = re.sub(r"\$JOBS_\w+_PASSWORD", '"secret"', rules)
    assert not re.search(r"jobs[.-]", rules), "a subject of another namespace than that of the example"
    rules = re.sub(r"(?<![a-z])shop(?=[.-])", "jobs", rules)  # the namespace of the tests
    rules = rules.replace("users = [", 'users = [\n{ user: root, password: "secret" }')
    for one in removed:
        rules = _without(rules, one)
    config = folder / "roles.conf"
    config.write_text(rules + "\n")
    return config


def _without(rules: str, removed: Removed) -> str:
    start = rules.index(f"{{ user: {removed.role},")
    found = re.compile(rf'{removed.verb}: (\[[^\]]*\]|"[^"]*")').search(rules, start)
    assert found is not None
    allowed = re.findall(r'"[^"]*"', re.sub(r"(?m)#.*$", "", found[1]))
    kept = [subject for subject in allowed if subject != f'"{removed.subject}"']
    denied = f', deny: ["{removed.subject}"]' if kept == allowed else ""
    lists = f"{removed.verb}: {{ allow: [{', '.join(kept)}]{denied} }}"
    return rules[: found.start()] + lists + rules[found.end() :]


class GuardedServer(EmbeddedServer):
    """A server with the users and permissions of the example."""

    def __init__(self, folder: Path, *removed: Removed) -> None:
        self._config_folder = folder
        super().__init__(extra=("-c", str(roles_config(folder, removed))))

    def permit(self, *removed: Removed) -> None:
        """Write the permissions of the example but these, for the next start."""
        roles_config(self._config_folder, removed)

    def change(self, *removed: Removed) -> None:
        """Apply the permissions of the example but these. Connections stay."""
        self.permit(*removed)
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def settings_of(self, role: str, **groups: dict[str, Any]) -> Settings:
        """The settings of an app that connects in that role."""
        login = {"user": role, "password": "secret", "inbox_prefix": f"_INBOX_{role}"}
        return server_settings(self.url, **{**groups, "nats": {**login, **groups.get("nats", {})}})
