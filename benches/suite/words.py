"""Figures in words, the same in the table, in the README and in the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suite.judge import Verdict


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def figure(value: float, verdict: Verdict) -> str:
    """A ratio, or a value with its unit: "5.2x" is 5.2 times better, "0.8 of" has 0.8 of the reference's value."""
    return number(value) + {"gain": "x", "cost": " of", "value": f" {verdict.row.unit}"}[verdict.row.sense]


def machine_line(results: dict[str, Any]) -> str:
    """The machine's facts in one line."""
    facts = results["machine"]
    return (
        f"{facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}, Python {facts['python']}, "
        f"uvloop {facts['uvloop']}, commit {facts['commit']}, {results['date']}"
    )


def probe_line(results: dict[str, Any]) -> str:
    """How quiet the machine was: the probes of all rounds."""
    probes = sorted(us for run in results["runs"] for case in run.values() for us in case["probe_us"] if us is not None)
    if not probes:
        return "noise probe: none, on one core"
    middle, high = probes[len(probes) // 2], probes[int(len(probes) * 0.9)]
    return f"noise probe, 64 B between two busy cores: median {middle:.2f} us, a tenth above {high:.2f} us"
