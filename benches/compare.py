"""Two builds of smcfast against each other: `compare.py PYTHON PYTHON`, interpreters of two environments that have them.

A few rows, each measured by both builds in turn, in processes of their own; the ratios are those within a round.
"""

from __future__ import annotations

import contextlib
import sys
from statistics import median
from typing import TYPE_CHECKING

from suite.pair import pair
from suite.rounds import places
from suite.words import number

if TYPE_CHECKING:
    from suite.pair import Pair

ROUNDS = 7
SMC, QUIET, BIG_RING = "smcfast", "smcfast, no spinning", "smcfast, 4 MiB ring"
MEASURED = (
    # What it is called, by which configuration, which work, which figure, and whether less of it is better.
    ("round trip, 64 B", SMC, "echo", {"size": 64, "seconds": 0.15}, "p50_us", True),
    ("round trip, 64 B, no spinning", QUIET, "echo", {"size": 64, "seconds": 0.15}, "p50_us", True),
    ("round trip, 16 KiB", SMC, "echo", {"size": 16 << 10, "seconds": 0.15}, "p50_us", True),
    ("stream, 64 KiB chunks", SMC, "stream", {"chunk": 64 << 10, "seconds": 0.2}, "bytes_per_s", False),
    ("stream, 1 MiB chunks, 4 MiB ring", BIG_RING, "stream", {"chunk": 1 << 20, "seconds": 0.2}, "bytes_per_s", False),
    ("64 B writes a second", SMC, "stream", {"chunk": 64, "seconds": 0.15}, "writes_per_s", False),
    ("16 connections", SMC, "many", {"size": 64, "seconds": 0.2, "connections": 16}, "messages_per_s", False),
    ("connections set up a second", SMC, "cycles", {"count": 60}, "per_s", False),
)


def compare(old: Pair, new: Pair) -> None:
    """Print a line for each row, with what each build had and how many times better the new one is."""
    print(f"{'':34}{'old':>10}{'new':>10}{'better':>9}   rounds from .. to")
    for title, over, work, details, figure, less in MEASURED:
        found = []
        for turn in range(ROUNDS + 1):
            both = [(each, each.measure(over, work, **details)[figure]) for each in ((old, new)[:: 1 - 2 * (turn % 2)])]
            values = dict(both)
            found.append((values[old], values[new]))
        del found[0]  # the warm-up
        ratios = [a / b if less else b / a for a, b in found]
        olds, news = (median(side) for side in zip(*found, strict=True))
        spread = f"{number(min(ratios))} .. {number(max(ratios))}"
        print(f"{title:34}{_short(olds):>10}{_short(news):>10}{number(median(ratios)):>8}x   {spread}", flush=True)


def _short(value: float) -> str:
    for shift, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= shift:
            return number(value / shift) + unit
    return number(value)


def main(old: str, new: str) -> None:
    """Measure by the builds that these two interpreters import."""
    overs = (SMC, QUIET, BIG_RING)
    with contextlib.ExitStack() as stack:
        cpus = places("a core each")
        pairs = [stack.enter_context(pair("uvloop", overs, cpus, python=python)) for python in (old, new)]
        compare(pairs[0], pairs[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
