"""What becomes of the measurements of applications: `python -m suite.services APPS.json` prints the table and judges the gate.

With --keep they also become those of the repository: benches/results/apps.json, and the figures in docs/benchmarks.md.

Exit status: 0 when the gate is held, 1 when it is missed, 2 when it cannot be judged because the machine had other work.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from suite import pages
from suite.words import machine_line, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    Figures = dict[str, float]
    Rounds = list[dict[str, dict[str, Figures]]]

OURS, NO_SPIN, LONG_SPIN, TCP, UNIX = "smcfast", "smcfast, no spinning", "smcfast, spin_us=300", "tcp", "unix"
RIVALS: Final = (TCP, UNIX)
QUIET: Final = 1.0
"""Programs that may run on the machine before a run begins, on an average of a minute; with more of them the gate is not judged."""


@dataclass(frozen=True)
class Case:
    """Something that an application does, by several transports in turn.

    :param kind: the event loop of both ends, or of the client and the proxy.
    """

    application: str
    what: str
    work: str
    connections: int
    kind: str = "uvloop"
    each: int = 1
    transports: tuple[str, ...] = (OURS, TCP, UNIX)
    gate: float | None = None
    goal: float | None = None

    @property
    def key(self) -> str:
        """What tells it from the others, and the text of its row."""
        many = f"{self.connections} connection{'s' * (self.connections > 1)}"
        return f"{self.application}, {self.what}, {many}" + (f", {self.kind}" if self.kind != "uvloop" else "")


_HTTP = "aiohttp", "GET", "http"
_ALL = (OURS, TCP, UNIX, NO_SPIN, LONG_SPIN)
CASES: Final = (
    *(Case(*_HTTP, connections, transports=_ALL, gate=1.0, goal=1.2) for connections in (1, 8, 32)),
    *(Case(*_HTTP, connections, kind="asyncio", transports=_ALL) for connections in (1, 8, 32)),
    Case("Redis", "GET", "get", 1),
    Case("Redis", "SET", "set", 1),
    Case("Redis", "GET", "get", 8),
    Case("Redis", "100 GETs pipelined", "pipelined", 1, each=100),
    Case("PostgreSQL", "prepared SELECT", "select", 1),
    Case("PostgreSQL", "prepared SELECT", "select", 8),
)

KEPT = Path(__file__).resolve().parents[1] / "results" / "apps.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
BEGIN = "<!-- figures: made by make bench-apps KEEP=1 -->\n"


def ratio(rounds: Rounds, case: Case, rival: str, ours: str = OURS) -> float:
    """How many times the rival's requests a second: the median over the rounds of what each round had."""
    return median(each[case.key][ours]["per_s"] / each[case.key][rival]["per_s"] for each in rounds)


def table(results: dict[str, Any]) -> str:
    """Markdown: the medians of requests a second and of the 99th percentile, and the ratios of requests a second."""
    rounds: Rounds = results["rounds"]
    lines = ["| requests a second (99 of 100 within, us) | smcfast | TCP | unix socket | to TCP | to unix | gate |"]
    lines.append("|---|---|---|---|---|---|---|")
    for case in CASES:
        for ours in (name for name in case.transports if name not in RIVALS):
            cells = [case.key + ours.removeprefix(OURS)]
            cells += [_cell(rounds, case, transport) for transport in (ours, *RIVALS)]
            cells += [f"{number(ratio(rounds, case, rival, ours))}x" for rival in RIVALS]
            cells.append(_verdict(results, case) if ours == OURS else "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(rounds: Rounds, case: Case, transport: str) -> str:
    per_s, p99_us = (median(each[case.key][transport][unit] for each in rounds) for unit in ("per_s", "p99_us"))
    return f"{per_s:.0f} ({number(p99_us)})"


def _verdict(results: dict[str, Any], case: Case) -> str:
    if case.gate is None or case.goal is None:
        return ""
    if not is_quiet(results):
        return f"{number(case.gate)}x, goal {number(case.goal)}x: not judged"
    reached = ratio(results["rounds"], case, UNIX)
    words = ["held" if reached >= bound else "missed" for bound in (case.gate, case.goal)]
    return f"{number(case.gate)}x {words[0]}, goal {number(case.goal)}x {words[1]}"


def is_quiet(results: dict[str, Any]) -> bool:
    """Had the machine nothing else to do when the run began?"""
    return float(results["load"]) <= QUIET


def faults(results: dict[str, Any]) -> list[str]:
    """The rows whose gate does not hold."""
    rounds: Rounds = results["rounds"]
    return [case.key for case in CASES if case.gate is not None and ratio(rounds, case, UNIX) < case.gate]


def page(results: dict[str, Any]) -> str:
    """The part of docs/benchmarks.md."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    busy = f"{number(results['load'])} programs were running on the machine before it began"
    return f"{machine_line(results)}; {versions}; {len(results['rounds'])} rounds; {busy}.\n\n{table(results)}"


def main(arguments: Sequence[str]) -> int:
    """Print, and keep; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--keep", action="store_true", help="let the page show them")
    options = parser.parse_args(arguments)
    results = json.loads(options.results.read_text())
    print(page(results))
    if options.keep:
        if options.results != KEPT:
            shutil.copyfile(options.results, KEPT)
        PAGE.write_text(pages.filled(PAGE.read_text(), page(results), BEGIN))
    if not is_quiet(results):
        print("gates: not judged, the machine had other work")
        return 2
    missed = faults(results)
    print(f"gates: {len(missed)} missed" + (f": {'; '.join(missed)}" if missed else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
