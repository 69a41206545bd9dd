"""The roles of the example configuration, switched on."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "nats-server.conf"


def roles_config(folder: Path) -> Path:
    """A configuration with the users of the example, each with the password `secret`."""
    example = EXAMPLE.read_text()
    lines = example[example.index("# authorization {") :].split("\n\n")[0].splitlines()
    rules = "\n".join(line.removeprefix("#") for line in lines if not line.startswith("# Give each"))
    rules = re.sub(r"\$JOBS_\w+_PASSWORD", '"secret"', rules)
    config = folder / "roles.conf"
    config.write_text(rules + "\n")
    return config
