"""The results of several runs in one file: `python -m suite.results RUN.json ... --into FILE` prints the table.

With --keep they also become those of the repository: benches/results/kept.json, the picture and the README's figures.

Exit status: 0 when every gate was held, 1 when one was missed, 2 when the runs lack a row of the table.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from suite import judge, pages, picture
from suite.cases import ROWS
from suite.words import figure, machine_line, number, probe_line

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "benches" / "results" / "kept.json"
PICTURE = ROOT / "docs" / "benchmarks.svg"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "benchmarks.md"
WIDTH = max(len(row.title) for row in ROWS)


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of the JSON files of pytest-benchmark: the machine, and for each run its cases."""
    machines = [bench["extra_info"]["machine"] for run in runs for bench in run["benchmarks"]]
    if any(machine != machines[0] for machine in machines):
        raise SystemExit("the runs are of different machines, interpreters or commits")
    kept = []
    for run in runs:
        cases = {bench["extra_info"]["case"]: dict(bench["extra_info"]) for bench in run["benchmarks"]}
        for case in cases.values():
            del case["case"], case["machine"]
        kept.append(cases)
    return {"machine": machines[0], "date": runs[0]["datetime"][:10], "runs": kept}


def table(results: dict[str, Any]) -> list[str]:
    """The lines of the table of ratios against the gates."""
    lines = [machine_line(results), probe_line(results), ""]
    head = f"{'':{WIDTH}} {'smcfast':>12} {'reference':>12} {'best':>10} {'gate':>9}        {'goal':>9}"
    lines += [head, "-" * len(head)]
    for verdict in judge.verdicts(results):
        row = verdict.row
        ours = f"{number(verdict.ours)} {row.unit}"
        theirs = "" if verdict.theirs is None else f"{number(verdict.theirs)} {row.unit}"
        line = f"{row.title:{WIDTH}} {ours:>12} {theirs:>12} {figure(verdict.best, verdict):>10}"
        for bound, word in ((row.gate, verdict.gate), (row.goal, verdict.goal)):
            line += f" {'' if bound is None else figure(bound, verdict):>9} {'' if bound is None else word:6}"
        runs = " ".join(number(ratio) for ratio in verdict.runs)
        lines.append(f"{line.rstrip()}   (runs: {runs})")
    return lines


def keep(results: dict[str, Any]) -> None:
    """Make these the results of the repository."""
    KEPT.write_text(json.dumps(results, indent=1) + "\n")
    PICTURE.write_text(picture.drawn(results))
    README.write_text(pages.filled(README.read_text(), pages.readme(results)))
    PAGE.write_text(pages.filled(PAGE.read_text(), pages.ladders(results)))


def main(arguments: list[str]) -> int:
    """Merge, write, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--into", required=True, type=Path)
    parser.add_argument("--keep", action="store_true", help="let the README show them")
    options = parser.parse_args(arguments)
    results = merged([json.loads(path.read_text()) for path in options.runs])
    options.into.parent.mkdir(parents=True, exist_ok=True)
    options.into.write_text(json.dumps(results, indent=1) + "\n")
    if options.keep:
        keep(results)
    print("\n".join(table(results)))
    found = judge.verdicts(results)
    missed = [verdict.row.title for verdict in found if verdict.gate == "MISSED"]
    lacking = [row.title for row in ROWS if row.gate is not None and row not in {verdict.row for verdict in found}]
    if lacking:
        print(f"\nnot measured: {', '.join(lacking)}")
    print(f"\ngates: {len(missed)} missed" + (f": {'; '.join(missed)}" if missed else ""))
    return 1 if missed else 2 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
