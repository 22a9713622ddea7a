"""What the figures were measured on, and how quiet it was."""

from __future__ import annotations

import gc
import mmap
import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
ROUND_TRIPS = 2000
"""Of one probe, about a millisecond."""
OWN, THEIRS = 0, 8
"""The words of the probe's page by which the ends call: one cache line each."""


def _kernel() -> str:
    """The version, without what a build adds to it."""
    return platform.release().partition("-")[0]


def facts() -> dict[str, Any]:
    """The machine, the interpreter and the commit."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": _kernel(),
        "python": platform.python_version(),
        "uvloop": metadata.version("uvloop"),
        "smcfast": metadata.version("smcfast"),
        "commit": commit(),
        "machine": platform.machine(),
    }


def commit() -> str:
    """The commit of the work tree, with + behind it when something was changed since; "unknown" outside git."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git(
            "status", "--porcelain", "--untracked-files=no", "--", "src", "python", "Cargo.toml", "Cargo.lock"
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cpus() -> tuple[int, int] | None:
    """A core for each end, or None where there is one only."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else None


def pin(cpu: int | None) -> None:
    """Keep this process on one CPU; None leaves it to the scheduler."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of them lie; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def ping(path: str) -> float:
    """The round trip of 64 bytes between two busy processes through a shared page, in microseconds.

    No system call and none of our code: what it costs is the way between the two cores, and Python's loop.
    """
    with _Page(path) as (words, payload):
        times = []
        for number in range(1, ROUND_TRIPS + 1):
            start = time.perf_counter_ns()
            payload[OWN * 8 + 8 : OWN * 8 + 64] = _FILLING
            words[OWN] = number
            while words[THEIRS] != number:
                pass
            times.append(time.perf_counter_ns() - start)
        return percentile(times, 50) / 1e3


def pong(path: str) -> int:
    """The other end of :func:`ping`; how many it answered."""
    with _Page(path) as (words, payload):
        for number in range(1, ROUND_TRIPS + 1):
            while words[OWN] != number:
                pass
            payload[THEIRS * 8 + 8 : THEIRS * 8 + 64] = _FILLING
            words[THEIRS] = number
    return ROUND_TRIPS


_FILLING = bytes(56)


class _Page:
    """A page that two processes share, as words and as bytes."""

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR)
        self._memory = mmap.mmap(fd, mmap.PAGESIZE)
        os.close(fd)
        self._payload = memoryview(self._memory)
        self._words = self._payload.cast("Q")

    def __enter__(self) -> tuple[memoryview, memoryview]:
        return self._words, self._payload

    def __exit__(self, *_: object) -> None:
        self._words.release()
        self._payload.release()
        self._memory.close()


def memory_bytes() -> int:
    """The memory of this process: what is resident and in no memfd, and every block of the memfds that it maps.

    A page that both ends map counts whole at each.
    """
    gc.collect()
    resident = blocks = 0
    seen: set[tuple[int, int]] = set()
    memfd = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(" ")
        if not name.endswith(":"):
            memfd = "/memfd:" in value
            if memfd:
                found = os.stat(f"/proc/self/map_files/{_range(name)}")
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    blocks += found.st_blocks * 512
        elif name == "Rss:" and not memfd:
            resident += int(value.split()[0]) * 1024
    return resident + blocks


def _range(addresses: str) -> str:
    """As the names in map_files have it: without leading zeros."""
    return "-".join(f"{int(one, 16):x}" for one in addresses.split("-"))
