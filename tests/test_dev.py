"""The tools behind the Makefile, as far as a mistake there would make a check say yes to everything."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import select
import sys
from pathlib import Path
from typing import Any

import pytest

DEV = Path(__file__).resolve().parents[1] / ".ci" / "dev"


@pytest.fixture
def dev(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of .ci/dev by name."""
    monkeypatch.syspath_prepend(str(DEV))
    return importlib.import_module


@pytest.fixture
def phases(dev: Any) -> Any:
    return dev("phases").Phases()


@pytest.mark.parametrize(
    ("expression", "good"),
    [
        ("MIT", True),
        ("MIT OR Apache-2.0", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT/Apache-2.0", True),
        ("(MIT OR GPL-2.0-only) AND Unicode-3.0", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT AND GPL-2.0-only", False),
        ("Apache-2.0 WITH Other-exception", False),
        ("(MIT", False),
        ("MIT MIT", False),
        ("", False),
    ],
)
def test_licences(dev: Any, expression: str, good: bool) -> None:
    allowed = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"}
    assert dev("licences").permitted(expression, allowed) is good


def test_a_command_that_fails_is_a_failure(dev: Any, phases: Any) -> None:
    with pytest.raises(dev("phases").PhaseFailed, match="exit status 3"):
        phases.run("fails", [sys.executable, "-c", "raise SystemExit(3)"])
    phases.check("fails", [sys.executable, "-c", "raise SystemExit(3)"])
    assert len(phases.failures) == 1


def test_a_command_that_hangs_is_killed_with_its_children(dev: Any, phases: Any, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"""
import pathlib, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
pathlib.Path({str(pid)!r}).write_text(str(child.pid))
signal.pause()
"""
    with pytest.raises(dev("phases").PhaseFailed, match="stopped after"):
        phases.run("hangs", [sys.executable, "-c", code], limit=4)
    assert ended(int(pid.read_text()))


def ended(pid: int) -> bool:
    """Whether a process is dead, or about to be: SIGKILL takes a moment."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return select.select([fd], [], [], 30)[0] == [fd]
    finally:
        os.close(fd)


def test_commands_beside_each_other_run_at_once_and_are_told_of_in_turn(
    dev: Any, phases: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each waits for the other, the first prints last, and the second fails."""
    one, other = tmp_path / "one", tmp_path / "other"
    for fifo in (one, other):
        os.mkfifo(fifo)
    first = f"open({str(one)!r}, 'w').close(); open({str(other)!r}).read(); print('said by the first')"
    second = f"open({str(one)!r}).read(); print('said by the second', flush=True); open({str(other)!r}, 'w').close()"
    phases.beside(
        ("first", [sys.executable, "-c", first], {}),
        ("second", [sys.executable, "-c", f"{second}; raise SystemExit(3)"], {}),
    )
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("said")]
    assert said == ["said by the first", "said by the second"]
    assert [failure.partition(":")[0] for failure in phases.failures] == ["exit status 3"]
    phases.report()
    rows = [line.split()[-1] for line in capfd.readouterr().out.splitlines() if " s  " in line]
    assert rows[:2] == ["first", "second"]


@pytest.mark.parametrize(
    "line", ["==== 3 passed in 0.1s ====", "test result: ok. 3 passed; 0 failed", "     Summary [ 0.1s] 3 tests run"]
)
def test_closing_lines_are_repeated_at_the_end(phases: Any, capsys: pytest.CaptureFixture[str], line: str) -> None:
    phases.run("suite", [sys.executable, "-c", f"print({line!r}); print('something else')"])
    capsys.readouterr()
    phases.report()
    assert line.strip() in capsys.readouterr().out.splitlines()[-1]


def test_interpreters_are_found_oldest_first(dev: Any) -> None:
    found = dev("interpreters").find()
    versions = [each.version for each in found]
    assert versions == sorted(set(versions))
    assert sys.version_info[:2] in versions
    assert all(os.access(each.path, os.X_OK) and each.version >= (3, 11) for each in found)


def test_the_demo_installs_nothing_that_it_does_not_need(
    dev: Any, phases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command that anybody types: it builds, and waits for no linter and no test tool."""
    interpreters, wheels = dev("interpreters"), dev("wheels")
    groups: list[str] = []
    monkeypatch.setattr(interpreters.Venv, "ensure", lambda _self, _phases, *names: groups.extend(names))
    monkeypatch.setattr(wheels, "build", lambda *_: Path("a.whl"))
    monkeypatch.setattr(phases, "run", lambda *_, **__: None)
    spec = importlib.util.spec_from_file_location("dev_commands", DEV / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    commands = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(commands)
    commands.demo(phases, ())
    assert groups == ["build"]


KEPT = {"rust": {"with": "rustc 1", "counts": {"a": 1000, "b": 1000}}}


@pytest.mark.parametrize(
    ("compiler", "counts", "fault"),
    [
        ("rustc 1", {"a": 1032, "b": 100}, None),
        ("rustc 1", {"a": 1033, "b": 1000}, "a: 1033 instructions, [+]3.3%; 3% are allowed"),
        ("rustc 2", {"a": 1033, "b": 1000}, None),
        ("rustc 2", {"a": 1253, "b": 1000}, "a: 1253 instructions, [+]25.3%; 25% are allowed"),
        ("rustc 1", {"a": 1000}, "b: not counted any more"),
        ("rustc 1", {"a": 1000, "b": 1000, "c": 1}, "c: not among the figures kept"),
    ],
)
def test_more_instructions_than_kept_are_a_failure(
    dev: Any, compiler: str, counts: dict[str, int], fault: str | None
) -> None:
    faults = dev("counts").compare({"rust": {"with": compiler, "counts": counts}}, KEPT)
    if fault is None:
        assert faults == []
    else:
        assert len(faults) == 1
        assert re.match(fault, faults[0])


def test_an_architecture_without_figures_says_so(dev: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert dev("counts").compare(KEPT, None) == []
    assert "no figures are kept" in capsys.readouterr().out
