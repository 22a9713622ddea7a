"""smcfast against asyncio over TCP: two processes, both transports in each round, one behind the other.

The machine's speed changes from second to second, so only the ratios within a round mean anything; their median is in
the extra information of the result.
"""

from __future__ import annotations

import asyncio
from statistics import median
from typing import TYPE_CHECKING

import pytest
import uvloop

import smcfast
from smcfast.cli import demo

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = 5
SIZE = 128 << 20  # bytes in each round

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.mark.parametrize("spin_us", ["50", "0"])
@pytest.mark.parametrize("loop", LOOPS)
def bench_streams(benchmark: BenchmarkFixture, monkeypatch: pytest.MonkeyPatch, loop: str, spin_us: str) -> None:
    """64-byte round trips and a stream of 64 KiB chunks, with and without spinning at both ends."""
    monkeypatch.setenv("SMCFAST_SPIN_US", spin_us)
    monkeypatch.setenv("SMCFAST_FALLBACK", "forbid")
    rounds: list[tuple[demo.Result, demo.Result]] = []
    with demo.server(loop == "uvloop") as (smc_port, tcp_port), asyncio.Runner(loop_factory=LOOPS[loop]) as runner:

        async def both() -> None:
            # Without config= the process would keep the first case's.
            config = smcfast.SmcConfig()
            smc = await demo.measure(lambda: smcfast.open_smc_connection(demo.HOST, smc_port, config=config), SIZE)
            tcp = await demo.measure(lambda: asyncio.open_connection(demo.HOST, tcp_port), SIZE)
            rounds.append((smc, tcp))

        benchmark.pedantic(lambda: runner.run(both()), rounds=ROUNDS, warmup_rounds=1)
    rounds = rounds[1:]
    assert {smc.path for smc, _ in rounds} == {"smc-d"}
    benchmark.extra_info.update(
        round_trip_ratio=round(median(tcp.round_trip_us / smc.round_trip_us for smc, tcp in rounds), 2),
        throughput_ratio=round(median(smc.bytes_per_second / tcp.bytes_per_second for smc, tcp in rounds), 2),
        round_trip_us=round(median(smc.round_trip_us for smc, _ in rounds), 2),
        gigabytes_per_second=round(median(smc.bytes_per_second for smc, _ in rounds) / 1e9, 2),
    )
    print(f"\n{loop}, spin_us={spin_us}: {benchmark.extra_info}")
