"""Arrays from one worker of Dask to another, by ``smc://`` and ``tcp://`` in turn: docs/dask.md shows what this printed.

In an environment with ``smcfast[dask]`` and numpy: ``python benches/dask_transfer.py``. Every cluster is two worker processes on this
machine, nothing is pinned. A time is from handing a task that wants the array to the scheduler until its result is back, so
it has the scheduler's share in it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from typing import Any, Final

import dask
import distributed
import numpy as np
import psutil

ROUNDS: Final = 3
KINDS: Final = {
    "smc://": ("smc://", {}),
    "smc://, 4 MiB ring": ("smc://", {"rmb-size": 4 << 20}),
    "tcp://": ("tcp://", {}),
}


def make(size: int, number: int) -> np.ndarray[Any, Any]:
    """An array of `size` bytes that no other is equal to."""
    return np.full(size // 8, float(number))


def use(array: np.ndarray[Any, Any]) -> float:
    """Touch its ends: whatever came is there."""
    return float(array[0] + array[-1])


def cpu(dask_worker: Any) -> float:
    """Seconds of CPU that this process has taken."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def transfers(client: distributed.Client, size: int, count: int, serial: int) -> tuple[list[float], float]:
    """Seconds that each of `count` arrays takes from the first worker to the second, and CPU seconds of both for all."""
    first, second = sorted(client.scheduler_info()["workers"])
    arrays = [client.submit(make, size, serial + each, workers=[first], pure=False) for each in range(count)]
    distributed.wait(arrays)
    before = sum(client.run(cpu).values())
    taken = []
    for number, array in enumerate(arrays):
        begun = time.perf_counter()
        result = client.submit(use, array, workers=[second], pure=False).result()
        taken.append(time.perf_counter() - begun)
        assert result == 2 * (serial + number)
    return taken, sum(client.run(cpu).values()) - before


def rotated(items: list[Any], steps: int) -> list[Any]:
    """Whoever is first in one round is last in another one."""
    steps %= len(items)
    return items[steps:] + items[:steps]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10, help="arrays of a round")
    count = parser.parse_args().count
    sizes = {"100 MB": (100_000_000, count), "1 MB": (1_000_000, 5 * count), "1 kB": (1_000, 5 * count)}
    with contextlib.ExitStack() as stack:
        clients = {}
        for name, (protocol, fields) in KINDS.items():
            with dask.config.set({"distributed.comm.smc": fields}):
                cluster = distributed.LocalCluster(
                    n_workers=2, threads_per_worker=1, protocol=protocol, dashboard_address=None, memory_limit="4GiB"
                )
                clients[name] = stack.enter_context(distributed.Client(stack.enter_context(cluster)))
        figures: dict[tuple[str, str], list[tuple[list[float], float]]] = {}
        for round_ in range(ROUNDS + 1):  # the first one connects, and warms up
            for label, (size, times) in sizes.items():
                for name, client in rotated(list(clients.items()), round_):
                    taken, spent = transfers(client, size, times, 1000 * round_)
                    if round_:
                        figures.setdefault((label, name), []).append((statistics.median(taken), spent / times))
    for (label, name), rounds in figures.items():
        median = statistics.median(seconds for seconds, _ in rounds)
        spread = (
            f"{min(seconds for seconds, _ in rounds) * 1e3:.1f} to {max(seconds for seconds, _ in rounds) * 1e3:.1f}"
        )
        spent = statistics.median(seconds for _, seconds in rounds)
        print(f"| {label} | {name} | {median * 1e3:.1f} ms | {spread} ms | {spent * 1e3:.1f} ms |")


if __name__ == "__main__":
    main()
