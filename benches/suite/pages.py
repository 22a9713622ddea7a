"""The parts of README.md and docs/benchmarks.md that have figures, between two marks, made from the kept results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from suite import judge, words
from suite.cases import LADDER, LADDER_SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGIN, END = "<!-- figures: made by make bench KEEP=1 -->\n", "<!-- end of figures -->\n"


def readme(results: dict[str, Any]) -> str:
    """The machine and every row of the table, as Markdown."""
    lines = [
        f"{words.machine_line(results)}; {words.probe_line(results)}.",
        "",
        "A ratio is the median over the rounds of what each round had, so it is not the quotient of the two columns, each a",
        "median of its own.",
        "",
        "| | smcfast | TCP, or what the row names | ratio | gate |",
        "|---|---|---|---|---|",
    ]
    for verdict in judge.verdicts(results):
        row = verdict.row
        theirs = "" if verdict.theirs is None else f"{words.number(verdict.theirs)} {row.unit}"
        ratio = words.figure(verdict.best, verdict) if verdict.theirs is not None else ""
        gate = "" if row.gate is None else f"{words.figure(row.gate, verdict)} {verdict.gate.lower()}"
        lines.append(f"| {row.title} | {words.number(verdict.ours)} {row.unit} | {theirs} | {ratio} | {gate} |")
    return "\n".join(lines) + "\n"


def ladders(results: dict[str, Any]) -> str:
    """Every transport at every size: round trips and streams, as Markdown."""
    run = results["runs"][0]
    lines = [*_ladder(run, "Round trip, median, in microseconds:", "echo", "p50_us", 1.0)]
    lines += _ladder(run, "Stream in chunks, in MB/s:", "stream", "bytes_per_s", 1e-6)
    return "\n".join(lines)


def _ladder(run: dict[str, Any], head: str, work: str, figure: str, scale: float) -> Iterator[str]:
    yield f"{head}\n"
    names = [str(each) for each in next(case for case in LADDER if case.work == work).transports]
    yield "| | " + " | ".join(size(each) for each in LADDER_SIZES) + " |"
    yield "|---" * (len(LADDER_SIZES) + 1) + "|"
    for name in names:
        medians = [run[f"ladder {work} {each}"]["medians"] for each in LADDER_SIZES]
        if all(name in each for each in medians):
            yield f"| {name} | " + " | ".join(words.number(each[name][figure] * scale) for each in medians) + " |"
    yield ""


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB" if count >= 1 << 10 else f"{count} B"


def filled(text: str, figures: str, mark: str = BEGIN) -> str:
    """A page's `text` with these figures between `mark` and the end behind it.

    :raises ValueError: it has no place for them.
    """
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no {mark.strip()} and {END.strip()}")
    return f"{before}{begin}\n{figures}\n{end}{after}"
