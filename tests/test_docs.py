"""The pages that users look things up in have everything that there is, as the code has it."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, SmcInfo, _core, config, log, reasons
from support.streams import connected

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
DISCOVERY = (ROOT / "docs" / "discovery.md").read_text()
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)


def test_the_look_from_outside_shows_a_connection(run: Callable[..., None], run_python: Callable[..., Any]) -> None:
    (program,) = re.findall(r"## From outside\n.*?```python\n(.*?)```", CONFIGURATION, re.DOTALL)

    async def look() -> None:
        async with connected("127.0.0.1") as (client, _):
            client.writer.write(b"x" * 77)
            done = await asyncio.to_thread(run_python, "-c", program)
            assert (done.returncode, done.stderr) == (0, "")
            port = client.writer.get_extra_info("sockname")[1]
            assert re.search(rf"client smc-d ACTIVE \('127.0.0.1', {port}\) .* 77 0$", done.stdout, re.MULTILINE)

    run(look)


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


def test_the_codes_with_a_test_that_sends_them_are_those_that_this_version_sends() -> None:
    """The page is made from the core; the list of the codes that are counted is the package's."""
    page = (ROOT / "docs" / "diagnoses.md").read_text()
    sent = re.findall(r"^\| (0x[0-9A-F]{8}) \| `\w+` \| when ", page, re.MULTILINE)
    assert tuple(int(code, 16) for code in sent) == reasons.DECLINED


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


def test_everything_verified_has_its_test() -> None:
    table = rows((ROOT / "docs" / "verified.md").read_text(), "behaviour")
    assert table
    for behaviour, kernel, tests in table:
        assert re.fullmatch(r"\d+\.\d+", kernel), behaviour
        named = re.findall(r"`([^`]+)::(\w+)`", tests)
        assert tests == ", ".join(f"`{file}::{name}`" for file, name in named) != "", behaviour
        for file, name in named:
            (path,) = [path for path in (ROOT / "tests" / "vm" / file, ROOT / "tests" / file) if path.exists()]
            assert re.search(rf"^(?:async )?(?:def|fn) {name}\(", path.read_text(), re.MULTILINE), f"{file}::{name}"


def reports_by_name() -> set[tuple[int, str]]:
    """The field reports that tests have in their names, each with its file, which lies in tests/ or is named from the root."""
    sources = [ROOT / name for name in ("tests", "src", "benches")]
    files = [path for folder in sources for path in folder.rglob("*") if path.suffix in (".py", ".rs")]
    found = set()
    for path in files:
        for name in re.findall(r"(?:def|fn) (\w*reports?_\d\w*)\(", path.read_text()):
            for numbers in re.findall(r"reports?_(\d+(?:_and_\d+)*)", name):
                file = str(path.relative_to(ROOT)).removeprefix("tests/")
                found |= {(int(number), file) for number in numbers.split("_and_")}
    return found


def test_every_field_report_is_in_the_table() -> None:
    table = rows((ROOT / "docs" / "testing.md").read_text(), "report")
    numbers = [int(number) for number, _, _ in table]
    assert numbers == sorted(set(numbers))
    documented = {
        (int(number), file) for number, _, where in table for file in re.findall(r"`([^`]+\.(?:py|rs))`", where)
    }
    assert documented == reports_by_name()
    assert all(where for *_, where in table)
