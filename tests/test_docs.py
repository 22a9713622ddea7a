"""The pages that users look things up in have everything that there is, as the code has it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import smcfast
from smcfast import SmcConfig, SmcInfo, _core, config, log, reasons
from support.streams import connected

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
DISCOVERY = (ROOT / "docs" / "discovery.md").read_text()
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of the rows of the table whose first column is called `first`."""
    (table,) = re.findall(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()]


def test_every_reason_is_in_the_page() -> None:
    found = re.findall(r"^\| (0x[0-9A-F]{8}) \| `(\w+)` \| (.+) \|$", DISCOVERY, re.MULTILINE)
    documented = {int(code, 16): name for code, name, _ in found}
    local = {row.code: row.name for row in reasons._TABLE.values()}
    declines = {code: name for code, (name, _) in _core.DIAGNOSES.items() if code != reasons.PEER_PLAIN}
    assert documented == local | declines
    assert len(found) == len(documented)
    possible = len(reasons.names())
    assert {name for _, name, _ in found[:possible]} == set(reasons.names())
    for code, name, text in found[possible:]:
        assert text == _core.DIAGNOSES[int(code, 16)][1], name


def test_every_field_of_the_configuration_is_in_the_page() -> None:
    settings = {one.name: one for one in config.settings()}
    documented = rows(CONFIGURATION, "field")
    assert [row[0].strip("`") for row in documented] == list(settings)
    for field, (name, variable, kind, default, wanted, meaning) in zip(
        dataclasses.fields(SmcConfig), documented, strict=True
    ):
        setting = settings[field.name]
        assert name == f"`{field.name}`"
        assert variable == f"`{setting.variable}`"
        assert kind == f"`{field.type}`".replace("'", '"').replace(" | ", " or ")
        assert default == f"`{setting.default!r}`".replace("'", '"')
        assert wanted == setting.wanted.replace("|", "or")
        assert meaning


def test_every_level_of_the_log_is_in_the_page() -> None:
    (line,) = (line for line in CONFIGURATION.splitlines() if line.startswith("`SMCFAST_LOG` is "))
    assert re.findall(r'"(\w+)"', line) == list(log._LEVELS)


def test_every_field_of_the_info_is_in_the_page() -> None:
    fields = [field for field in dataclasses.fields(SmcInfo) if field.name != "read_counters"]
    documented = [(name.strip("`"), kind.strip("`")) for name, kind, _ in rows(CONFIGURATION, "of `SmcInfo`")]
    expected = [(field.name, str(field.type).replace(" | ", " or ").replace("'", '"')) for field in fields]
    assert documented[: len(expected)] == expected
    properties = [
        (name, str(value.fget.__annotations__["return"]).replace(" | ", " or "))
        for name, value in vars(SmcInfo).items()
        if isinstance(value, property)
    ]
    assert documented[len(expected) :] == properties


async def test_every_counter_is_in_the_page() -> None:
    async with connected("127.0.0.1") as (client, _):
        assert [row[0].strip("`") for row in rows(CONFIGURATION, "counter")] == list(client.info.counters)


def test_every_figure_of_the_process_is_in_the_page() -> None:
    assert [row[0].strip("`") for row in rows(CONFIGURATION, r"of `stats\(\)`")] == list(smcfast.stats())


def test_every_exception_is_in_the_page() -> None:
    public = [getattr(smcfast, name) for name in smcfast.__all__]
    exceptions = {kind.__name__: kind for kind in public if isinstance(kind, type) and issubclass(kind, Exception)}
    documented = {name.strip("`"): bases.replace("`", "") for name, bases, _ in rows(CONFIGURATION, "exception")}
    assert documented == {
        name: ", ".join(base.__name__ for base in kind.__bases__) for name, kind in exceptions.items()
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_is_in_the_list() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text())
    assert set(listed) == {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
