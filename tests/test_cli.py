"""The command line, as a user runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import smcfast

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.smoke
def test_the_demo_moves_data_over_shared_memory(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "demo", "--bytes", str(8 << 20))
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("smc-d", "tcp", "ratio"))]
    assert [row[0] for row in rows] == ["smc-d", "tcp", "ratio"]
    assert "8 MiB, every byte checked" in done.stdout


def test_the_demo_on_uvloop(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "demo", "--uvloop", "--bytes", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert ", uvloop," in done.stdout


def test_a_demo_that_had_to_take_tcp_says_why_and_fails(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "demo", "--bytes", "1", env={"SMCFAST_PATHS": "smc-r"})
    assert done.returncode == 1
    assert "smcfast took TCP: paths=('smc-r',): this version has no smc-r" in done.stdout


def test_misuse_is_told(run_python: Run) -> None:
    for arguments in ([], ["nothing"], ["demo", "--bytes", "0"]):
        done = run_python("-m", "smcfast", *arguments)
        assert done.returncode == 2
        assert "usage: python -m smcfast" in done.stderr


def test_the_version(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "--version")
    assert done.stdout == f"smcfast {smcfast.__version__}\n"
