"""docs/discovery.md names every reason with its code."""

from __future__ import annotations

import re
from pathlib import Path

from smcfast import reasons

PAGE = Path(__file__).resolve().parents[1] / "docs" / "discovery.md"


def test_every_reason_is_in_the_page() -> None:
    rows = re.findall(r"^\| (0x[0-9A-F]{8}) \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    documented = {name: int(code, 16) for code, name in rows}
    assert documented == {row.name: row.code for row in reasons._TABLE.values()}
