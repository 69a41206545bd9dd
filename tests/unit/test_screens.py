"""The images of the documentation: all are there, shown, small, and load nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.screenshots.__main__ import IMAGES, SCREENS, WIDTHS

ROOT = Path(__file__).parents[2]
NAMES = sorted(f"{name}-{columns}.svg" for name in SCREENS for columns in WIDTHS)


def test_every_screen_has_its_images_and_the_page_shows_them() -> None:
    assert sorted(path.name for path in (ROOT / IMAGES).iterdir()) == NAMES
    page = (ROOT / "docs/reference/screens.md").read_text()
    assert sorted(re.findall(r"\(\.\./images/([^)]+)\)", page)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_small_and_complete_in_itself(name: str) -> None:
    image = (ROOT / IMAGES / name).read_text()
    assert len(image) < 60_000
    assert not re.search(r"(url\(|href=|src=|@import)\s*[\"']?https?:", image)
    assert "Traceback" not in image or name.startswith(("jobs-show", "top-job", "dev", "failing"))
