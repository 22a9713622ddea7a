"""What becomes of the measurements over software RoCE: `python -m suite.roce RDMA.json` prints the table and judges the gates.

With --keep they also become those of the repository: benches/results/rdma.json, and the figures in docs/benchmarks.md.

Exit status: 0 when both gates are held, 1 when one is missed or smcfast was not measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from suite import pages
from suite.words import machine_line, number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Figures = dict[str, float]
    Rounds = list[dict[str, Figures]]

MESSAGE, CHUNK = 64, 64 << 10
KERNEL, TCP, VERBS, STREAMS = "kernel AF_SMC", "TCP", "raw verbs", "asyncio TCP (uvloop)"
SPINS: Final = {
    "smcfast smc-r": None,
    "smcfast smc-r, spin_us=0": 0,
    "smcfast smc-r, spin_us=1000": 1000,
}
"""smcfast's rows, and their settings; None is the default."""
OURS: Final = "smcfast smc-r"
ROWS: Final = (KERNEL, *SPINS, VERBS, STREAMS, TCP)
REFERENCE: Final = KERNEL
"""What the gates compare with: the round trip no longer, and the stream no slower."""

KEPT = Path(__file__).resolve().parents[1] / "results" / "rdma.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
BEGIN = "<!-- figures: made by make bench-rdma KEEP=1 -->\n"


def round_trip(figures: Figures, reference: Figures) -> float:
    """How many times shorter than the reference's."""
    return reference["rtt_us"] / figures["rtt_us"]


def stream(figures: Figures, reference: Figures) -> float:
    """How many times as much as the reference's."""
    return figures["mb_s"] / reference["mb_s"]


def ratio(rounds: Rounds, name: str, of: Callable[[Figures, Figures], float]) -> float:
    """The median over the rounds of what each round had."""
    return median(of(figures[name], figures[REFERENCE]) for figures in rounds)


def table(results: dict[str, Any]) -> str:
    """Markdown: the medians, and the ratios to the reference, above 1 where it is better."""
    rounds: Rounds = results["rounds"]
    lines = [f"| | round trip, {MESSAGE} B | | stream, {CHUNK >> 10} KiB chunks | |", "|---|---|---|---|---|"]
    for name in ROWS:
        if all(name in figures for figures in rounds):
            rtt, rate = (median(figures[name][unit] for figures in rounds) for unit in ("rtt_us", "mb_s"))
            ratios = [f"{number(ratio(rounds, name, of))}x" for of in (round_trip, stream)]
            lines.append(f"| {name} | {number(rtt)} us | {ratios[0]} | {number(rate)} MB/s | {ratios[1]} |")
    return "\n".join(lines) + "\n"


def faults(results: dict[str, Any]) -> list[str]:
    """The gates that do not hold."""
    rounds: Rounds = results["rounds"]
    if not all(OURS in figures for figures in rounds):
        return [f"{OURS}: not measured: {results['missing'].get(OURS, 'no reason')}"]
    wrong = []
    if ratio(rounds, OURS, round_trip) < 1:
        wrong.append(f"{OURS}: the round trip takes longer than that of {REFERENCE}")
    if ratio(rounds, OURS, stream) < 1:
        wrong.append(f"{OURS}: the stream is slower than that of {REFERENCE}")
    return wrong


def page(results: dict[str, Any]) -> str:
    """The part of docs/benchmarks.md."""
    gates = "; ".join(faults(results)) or "both held"
    return f"{machine_line(results)}; {len(results['rounds'])} rounds.\n\n{table(results)}\nGates: {gates}.\n"


def main(arguments: Sequence[str]) -> int:
    """Print, and keep; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--keep", action="store_true", help="let the page show them")
    options = parser.parse_args(arguments)
    results = json.loads(options.results.read_text())
    print(page(results))
    if options.keep:
        shutil.copyfile(options.results, KEPT)
        PAGE.write_text(pages.filled(PAGE.read_text(), page(results), BEGIN))
    return 1 if faults(results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
