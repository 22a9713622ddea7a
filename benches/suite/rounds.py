"""Rounds: every transport of a case once, one behind the other, beginning with another one each time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from suite import machine
from suite.cases import SMC
from suite.pair import ENDS, Pair, pair
from suite.streams import CONFIGS

if TYPE_CHECKING:
    from suite.cases import Case, Place, Transport

    Round = dict[str, Any]

OVERS = {
    "uvloop": (*CONFIGS, "tcp", "unix"),
    "asyncio": (*CONFIGS, "tcp", "unix"),
    "blocking": (SMC, "tcp", "unix"),
}
"""What the server of a kind listens by; one that is not here by its own name."""


class Pairs(contextlib.ExitStack):
    """The pairs of processes of a run: started when they are first asked for, and kept for the cases that follow."""

    def __init__(self) -> None:
        super().__init__()
        self._pairs: dict[tuple[str, Place], Pair] = {}

    def of(self, kind: str, place: Place) -> Pair:
        """The pair of that kind at that place."""
        found = self._pairs.get((kind, place))
        if found is None:
            found = self.enter_context(pair(kind, OVERS.get(kind, (kind,)), places(place)))
            self._pairs[kind, place] = found
        return found


class Rounds:
    """One case and what its rounds found: for each transport its figures, and the noise probe."""

    def __init__(self, case: Case, pairs: Pairs) -> None:
        self.case = case
        self.transports = [each for each in case.transports if unavailable(each.kind) is None]
        self.found: list[Round] = []
        self._pairs = pairs

    def warm_up(self) -> None:
        """A short round that does not count: pages are touched, ways are found."""
        details = self.case.details
        short = {**details, **({"seconds": 0.03} if "seconds" in details else {"count": 10})}
        for transport in self.transports:
            self._measure(transport, short)

    def run(self) -> None:
        """One round."""
        shift = len(self.found) % len(self.transports)
        found: Round = {"probe_us": self._probe()}
        for transport in self.transports[shift:] + self.transports[:shift]:
            found[str(transport)] = self._measure(transport, self.case.details)
        self.found.append(found)

    def _measure(self, transport: Transport, details: dict[str, Any]) -> dict[str, float]:
        both = self._pairs.of(transport.kind, self.case.place)
        return both.measure(transport.over, self.case.work, **details)

    def _probe(self) -> float | None:
        """None where two busy ends would take turns on one core."""
        return self._pairs.of("uvloop", self.case.place).probe() if self.case.place == "a core each" else None


def places(place: Place) -> tuple[int | None, int | None]:
    """The CPUs of server and client.

    :raises LookupError: the machine has not enough of them.
    """
    cpus = machine.cpus()
    if place == "not pinned":
        return None, None
    if place == "one core":
        return (cpus[0], cpus[0]) if cpus else (None, None)
    if cpus is None:
        raise LookupError("this process may use one CPU only")
    return cpus[1], cpus[0]


def idle(case: Case) -> Round:
    """For each transport, in processes of its own: memory for one end and the CPU time of many open connections."""
    found: Round = {"probe_us": None}
    for transport in case.transports:
        with pair(transport.kind, [transport.over], places(case.place)) as both:
            both.measure(transport.over, "hold", count=10)
            before = both.rest(1.0)  # what it takes to fall asleep and to wake, once
            figures = both.measure(transport.over, "hold", count=case.details["count"])
            seconds = case.details["seconds"]
            figures["cpu_percent"] = round(max(0.0, both.rest(seconds) - before) / seconds * 100, 2)
            found[str(transport)] = figures
    return found


def unavailable(kind: str) -> str | None:
    """Why there are no processes of that kind here, or None."""
    ends: Any = ENDS[kind]
    reason: str | None = ends.unavailable() if hasattr(ends, "unavailable") else None
    return reason
