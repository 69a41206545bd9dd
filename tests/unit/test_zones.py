"""Time zones by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.model.errors import DefinitionError
from jetjobs.model.zones import zone_of


@pytest.mark.parametrize(
    "name", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "EST5EDT"]
)
def test_names_of_the_list_are_taken(name: str) -> None:
    assert zone_of(name).key == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("europe/berlin", "write Europe/Berlin"),
        ("America/New York", "write America/New_York"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("Asia/Berlin", "did you mean Europe/Berlin?"),
        ("America", "such as Europe/Berlin"),
        ("Mars/Olympus", "such as Europe/Berlin"),
        ("", "such as Europe/Berlin"),
        ("localtime", "such as Europe/Berlin"),
        ("Factory", "such as Europe/Berlin"),
        ("posixrules", "such as Europe/Berlin"),
        ("right/Europe/Berlin", "did you mean Europe/Berlin?"),
        ("posix/UTC", "did you mean UTC?"),
        ("/etc/localtime", ""),
        ("../../etc/passwd", "such as Europe/Berlin"),
        ("Europe/../Europe/Berlin", ""),
        ("Europe//Berlin", ""),
        ("Europe/Berlin/", ""),
        ("Europe\\Berlin", ""),
        ("Europe/Berlin\n", ""),
        ("Europe/Berlin\x00", ""),
        ("+02:00", ""),
        ("zone.tab", ""),
        ("tzdata.zi", ""),
        ("Éurope/Berlin", ""),
        ("A" * 5000, ""),
    ],
)
def test_other_names_are_refused(name: str, hint: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        zone_of(name)
    assert refused.value.hint is not None
    assert hint in refused.value.hint
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("name", [None, 2, b"UTC", ["UTC"]])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(DefinitionError, match="must be a name"):
        zone_of(name)


@given(st.text(max_size=20))
def test_any_text_is_a_zone_or_refused(name: str) -> None:
    try:
        assert zone_of(name).key == name
    except DefinitionError as error:
        assert error.hint


def test_zones_are_there_on_a_machine_without_any(tmp_path: Path) -> None:
    """As in a slim container: the data come from the tzdata package then."""
    script = (
        "import zoneinfo\n"
        f"zoneinfo.reset_tzpath([{str(tmp_path)!r}])\n"
        "from jetjobs.model.zones import zone_of\n"
        "print(zone_of('Europe/Berlin'), zone_of('UTC'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("Europe/Berlin UTC", "")
