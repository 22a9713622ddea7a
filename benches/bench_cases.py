"""The suite under pytest-benchmark: a benchmark is a case, its round measures by every transport in turn.

The time that pytest-benchmark shows is that of a whole round and tells nothing; the figures are in extra_info. Only the
ratios within a round mean anything: the machine's speed changes from second to second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suite import cases, judge, machine, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def pairs() -> Iterator[rounds.Pairs]:
    """The processes that measure."""
    with rounds.Pairs() as running:
        yield running


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.key)
def bench_rows(benchmark: BenchmarkFixture, pairs: rounds.Pairs, case: cases.Case) -> None:
    """The rows of the table."""
    measured(benchmark, pairs, case)


@pytest.mark.parametrize("case", cases.LADDER, ids=lambda case: case.key)
def bench_ladder(benchmark: BenchmarkFixture, pairs: rounds.Pairs, case: cases.Case) -> None:
    """Round trips and streams of every size from 64 B to 4 MiB."""
    measured(benchmark, pairs, case)


def measured(benchmark: BenchmarkFixture, pairs: rounds.Pairs, case: cases.Case) -> None:
    """Run the case's rounds and write what they found into extra_info."""
    try:
        rounds.places(case.place)
    except LookupError as error:
        pytest.skip(f"{case.key}: {error}")
    found: list[rounds.Round] = []
    if case.work == "idle":
        benchmark.pedantic(lambda: found.append(rounds.idle(case)), rounds=case.rounds)
    else:
        running = rounds.Rounds(case, pairs)
        running.warm_up()
        benchmark.pedantic(running.run, rounds=case.rounds)
        found = running.found
    benchmark.extra_info.update(case=case.key, machine=machine.facts(), **judge.summary(case.key, found))
