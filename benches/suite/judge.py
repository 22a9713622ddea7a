"""From rounds to figures: the median of a run's rounds, the best of the runs, and whether a gate was held."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from suite.cases import ROWS

if TYPE_CHECKING:
    from suite.cases import Row

    Round = dict[str, Any]
    Run = dict[str, Any]


def judged(row: Row, rounds: list[Round]) -> float:
    """The row's ratio, or its value: the median over the rounds of one run."""
    return median(_of_round(row, each) for each in rounds)


def _of_round(row: Row, found: Round) -> float:
    ours: float = found[str(row.subject)][row.figure]
    if row.sense == "value":
        return ours * row.scale
    theirs: float = found[str(row.reference)][row.figure]
    more, less = (theirs, ours) if row.sense == "gain" and row.better == "low" else (ours, theirs)
    return more / less if less else 0.0


def summary(key: str, rounds: list[Round]) -> Run:
    """What is kept of a case of one run: medians of every transport, the probe of each round, the rows of the table."""
    names = [name for name in rounds[0] if name != "probe_us"]
    medians = {
        name: {figure: median(each[name][figure] for each in rounds) for figure in rounds[0][name]} for name in names
    }
    return {
        "rounds": len(rounds),
        "probe_us": [each["probe_us"] for each in rounds],
        "medians": medians,
        "ratios": {row.key: judged(row, rounds) for row in ROWS if row.case == key},
    }


@dataclass(frozen=True)
class Verdict:
    """A row of the table: what the best run had, what each had, and what becomes of gate and goal."""

    row: Row
    best: float
    runs: tuple[float, ...]
    ours: float
    theirs: float | None

    @property
    def gate(self) -> str:
        return self._word(self.row.gate)

    @property
    def goal(self) -> str:
        return self._word(self.row.goal)

    def _word(self, bound: float | None) -> str:
        if bound is None:
            return "-"
        held = self.best >= bound if self.row.sense == "gain" else self.best <= bound
        return "HELD" if held else "MISSED"


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """One for each row whose case was measured, in the order of the table."""
    found = []
    for row in ROWS:
        runs = [run[row.case] for run in results["runs"] if row.case in run]
        ratios = [run["ratios"][row.key] for run in runs]
        if not ratios:
            continue
        best = max(ratios) if row.sense == "gain" else min(ratios)
        medians = runs[ratios.index(best)]["medians"]
        theirs = None if row.sense == "value" else medians[str(row.reference)][row.figure] * row.scale
        found.append(Verdict(row, best, tuple(ratios), medians[str(row.subject)][row.figure] * row.scale, theirs))
    return found
