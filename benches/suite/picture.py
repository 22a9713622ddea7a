"""The picture of the results: one bar for each ratio, on a logarithmic scale, with the gates and the machine's facts.

Written by hand, so that the same results give the same bytes, which a test compares.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from suite import judge, words

if TYPE_CHECKING:
    from suite.judge import Verdict

WIDTH, LEFT, RIGHT, TOP, LINE = 900, 330, 110, 64, 22
LOW, HIGH = 0.01, 300.0
"""The ends of the scale."""
TICKS = (0.01, 0.1, 1, 10, 100)
FASTER, SLOWER, GATE = "#2a78b5", "#c0392b", "#444444"


def drawn(results: dict[str, Any]) -> str:
    """The SVG of the rows that are ratios to TCP: how many times better, or worse, than TCP."""
    bars = [verdict for verdict in judge.verdicts(results) if verdict.row.sense != "value"]
    bottom = TOP + LINE * len(bars)
    height = bottom + 58
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(WIDTH / 2, 22, "smcfast against asyncio over TCP, both on uvloop: times better", "middle", 15),
        _text(WIDTH / 2, 40, words.machine_line(results), "middle", 10),
    ]
    for tick in TICKS:
        x = _x(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>')
        parts.append(_text(x, TOP - 10, f"{tick:g}x", "middle", 10))
    for number, verdict in enumerate(bars):
        parts += _bar(verdict, TOP + LINE * number)
    parts.append(f'<line x1="{_x(1):.1f}" y1="{TOP - 6}" x2="{_x(1):.1f}" y2="{bottom}" stroke="black"/>')
    parts.append(
        _text(LEFT, bottom + 18, "1x is TCP. Blue: better, red: worse. Mark: the gate that must be held.", "start", 10)
    )
    parts.append(_text(LEFT, bottom + 34, words.probe_line(results), "start", 10))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(ratio: float) -> float:
    share = math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _bar(verdict: Verdict, y: float) -> list[str]:
    def better(ratio: float) -> float:
        return ratio if verdict.row.sense == "gain" else 1 / ratio

    ratio = better(verdict.best)
    start, end = sorted((_x(1), _x(ratio)))
    colour = FASTER if ratio >= 1 else SLOWER
    parts = [
        _text(LEFT - 8, y + 14, verdict.row.title, "end", 12),
        f'<rect x="{start:.1f}" y="{y + 3}" width="{max(end - start, 1):.1f}" height="{LINE - 6}" fill="{colour}"/>',
        _text(WIDTH - RIGHT + 8, y + 14, f"{words.number(ratio)}x", "start", 12),
    ]
    if verdict.row.gate is not None:
        gate = _x(better(verdict.row.gate))
        parts.append(
            f'<line x1="{gate:.1f}" y1="{y}" x2="{gate:.1f}" y2="{y + LINE}" stroke="{GATE}" stroke-width="2"/>'
        )
    return parts


def _text(x: float, y: float, text: str, anchor: str, size: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
