"""What a run of the benchmarks says first."""

from __future__ import annotations

from suite import machine, rounds
from suite.pair import ENDS


def pytest_report_header() -> list[str]:
    reasons = {kind: rounds.unavailable(kind) for kind in ENDS}
    return [f"machine: {machine.facts()}", *(f"without {kind}: {why}" for kind, why in reasons.items() if why)]
