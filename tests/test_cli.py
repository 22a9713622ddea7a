"""The command line, as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import smcfast
from smcfast.cli import demo

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.smoke
def test_the_demo_moves_data_over_shared_memory(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "demo", "--bytes", str(8 << 20))
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("smc-d", "tcp", "ratio"))]
    assert [row[0] for row in rows] == ["smc-d", "tcp", "ratio"]
    assert "8 MiB, every byte checked" in done.stdout


def test_a_demo_whose_ends_sleep_says_so(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "demo", "--bytes", "1", env={"SMCFAST_SPIN_US": "0"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nOnly 0 of 5200 round trips were done without sleep: the two processes shared a CPU" in done.stdout


def test_the_demo_on_uvloop(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "demo", "--uvloop", "--bytes", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert ", uvloop," in done.stdout


def test_a_demo_that_had_to_take_tcp_says_why_and_fails(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "demo", "--bytes", "1", env={"SMCFAST_PATHS": ""})
    assert done.returncode == 1
    assert "smcfast took TCP: the configuration switches every SMC path or every discovery off" in done.stdout
    assert not any(line.startswith("ratio") for line in done.stdout.splitlines())


def test_the_program_of_the_same_name() -> None:
    program = Path(sys.executable).with_name("smcfast")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"smcfast {smcfast.__version__}\n", "")


@pytest.mark.parametrize("off", ["SMCFAST_PATHS", "SMCFAST_DISCOVERY"])
def test_a_demo_that_may_not_take_tcp_is_one_line(run_python: Run, off: str) -> None:
    done = run_python("-m", "smcfast", "demo", env={off: "", "SMCFAST_FALLBACK": "forbid"})
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("the demo failed: no SMC path, and fallback to TCP is forbidden: ")
    assert "(disabled, 0x0A000002)" in line


def test_a_wrong_setting_is_one_line(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "demo", env={"SMCFAST_SPIN_US": "fast"})
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line == "environment variable SMCFAST_SPIN_US='fast': must be an int, 0..10000 microseconds"


@pytest.mark.parametrize("uvloop", [[], ["--uvloop"]])
def test_an_interrupt_is_one_line(uvloop: list[str]) -> None:
    """Once while data moves: the server's word that it has accepted is in the log of the client's stream."""
    command = [sys.executable, "-m", "smcfast", "demo", "--bytes", "1000G", *uvloop]
    env = os.environ | {"SMCFAST_LOG": "debug"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        guard = threading.Timer(20, process.kill)
        guard.start()
        try:
            assert process.stderr is not None
            while "client connection with" not in process.stderr.readline():
                pass
            process.send_signal(signal.SIGINT)
            said, complaints = process.communicate()
        finally:
            guard.cancel()
    assert (process.returncode, said) == (130, "")
    assert [line for line in complaints.splitlines() if "connection with" not in line] == ["interrupted"]


@pytest.mark.parametrize(
    ("text", "size", "shown"),
    [
        ("1", 1, "1 byte"),
        ("100", 100, "100 bytes"),
        ("64k", 65536, "64 KiB"),
        ("65537", 65537, "64 KiB"),
        ("1536K", 1536 << 10, "1.5 MiB"),
        ("300M", 300 << 20, "300 MiB"),
        ("2G", 2 << 30, "2 GiB"),
    ],
)
def test_sizes(text: str, size: int, shown: str) -> None:
    assert demo._count(text) == size
    assert demo.amount(size) == shown


@pytest.mark.parametrize("size", [1, 7, 8, 9, 65536, 65537, 200_000])
def test_chunks_are_so_many_bytes(size: int) -> None:
    made = list(demo.chunks(size))
    assert sum(map(len, made)) == size
    assert len(set(made)) == len(made) == -(-size // demo.CHUNK)


@pytest.mark.parametrize(("size", "shown", "ratios"), [("100", "100 bytes", 2), ("1M", "1 MiB", 3)])
def test_a_small_demo_compares_no_throughput(run_python: Run, size: str, shown: str, ratios: int) -> None:
    done = run_python("-m", "smcfast", "demo", "--bytes", size)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"; {shown}, every byte checked" in done.stdout
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("ratio"))
    assert row.count(" x") == ratios
    (head,) = (line for line in done.stdout.splitlines() if line.startswith("path"))
    assert head.split() == ["path", "throughput", "round", "trip", "64", "B", "connect"]
    assert len(head) == len(row)
    assert "Other load" in done.stdout


def test_misuse_is_told(run_python: Run) -> None:
    for arguments in ([], ["nothing"], *(["demo", "--bytes", size] for size in ("0", "-1", "1 MB", "M", "1.5G"))):
        done = run_python("-m", "smcfast", *arguments)
        assert done.returncode == 2
        assert "usage: python -m smcfast" in done.stderr
        assert "--bytes" not in arguments or "with K, M or G (powers of 1024)" in done.stderr


def test_the_version(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "--version")
    assert done.stdout == f"smcfast {smcfast.__version__}\n"
