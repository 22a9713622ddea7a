"""This process's counters: connections by path, fallbacks by reason, sums over all connections. Thread-safe.

They are those of the status page; where there is none they are kept here.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypedDict

from smcfast import page, reasons

if TYPE_CHECKING:
    from smcfast._core import Status
    from smcfast.errors import Fallback

PATHS: Final = ("smc-d", "smc-r", "kernel", "tcp")
"""The paths of this version."""


class Stats(TypedDict):
    """What `stats` returns; every figure counts from the start of the process."""

    connections: dict[str, int]
    """Streams that were opened or accepted, by path."""
    fallbacks: dict[str, int]
    """Connections that could only be TCP, by reason. Those of `smcfast.reasons.names` are always there and in that order;
    others come behind them when a peer has declined with a code that this version does not use, "other" if there were too
    many of those. Forbidden and failed ones are included."""
    forbidden: int
    """Fallbacks that ``fallback="forbid"`` turned into an error: they are no stream."""
    failed: int
    """Connections of a server that a broken handshake has spoiled: they are closed, and no stream either. So the sum of
    `fallbacks` is ``connections["tcp"] + forbidden + failed``."""
    totals: dict[str, int]
    """What ``SmcInfo.counters`` has, summed over all connections on rings that are open or have ended."""


class _Private:
    """The counters of a process that has no page."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: Counter[str] = Counter()
        self._reasons: Counter[int] = Counter()
        self._forbidden = self._failed = 0

    def count_stream(self, path: str) -> None:
        with self._lock:
            self._paths[path] += 1

    def count_fallback(self, code: int, forbidden: bool) -> None:
        with self._lock:
            self._reasons[code] += 1
            self._forbidden += forbidden
            self._paths["tcp"] += not forbidden

    def count_failure(self, code: int) -> None:
        with self._lock:
            self._reasons[code] += 1
            self._failed += 1

    def totals(self) -> dict[str, Any]:
        with self._lock:
            return {
                "paths": dict(self._paths),
                "reasons": dict(self._reasons),
                "other": 0,
                "forbidden": self._forbidden,
                "failed": self._failed,
                "totals": {},
            }


_private = _Private()


def _renew() -> None:
    """A child counts from zero, and with a lock that nobody holds."""
    global _private
    _private = _Private()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def _counters() -> Status | _Private:
    return page.page() or _private


def count_connection(path: str) -> None:
    """One more stream on `path`."""
    _counters().count_stream(path)


def count_fallback(why: Fallback, *, forbidden: bool) -> None:
    """One more connection that can only be TCP."""
    _counters().count_fallback(why.code, forbidden)


def count_failure(why: Fallback) -> None:
    """One more connection of a server that is closed because its handshake broke off."""
    _counters().count_failure(why.code)


def stats() -> Stats:
    """A snapshot of this process's counters."""
    return told(_counters().totals())


def told(head: dict[str, Any]) -> Stats:
    """The counters in the head of a status page."""
    fallbacks = dict.fromkeys(reasons.names(), 0)
    fallbacks |= {reasons.known(code).name: count for code, count in head["reasons"].items()}
    if head["other"]:
        fallbacks["other"] = head["other"]
    return Stats(
        connections=dict.fromkeys(PATHS, 0) | {path: count for path, count in head["paths"].items() if count},
        fallbacks=fallbacks,
        forbidden=head["forbidden"],
        failed=head["failed"],
        totals=head["totals"],
    )


def reasons_of(stats: Stats) -> dict[str, int]:
    """The fallbacks that there were."""
    return {name: count for name, count in stats["fallbacks"].items() if count}


def line(stats: Stats) -> str:
    """For people: "3 (2 smc-d, 1 tcp: 1 peer_plain)"."""
    paths = [f"{count} {path}" for path, count in stats["connections"].items() if count]
    why = ", ".join(f"{count} {name}" for name, count in reasons_of(stats).items())
    inner = ", ".join(paths) + (f": {why}" if why else "")
    return f"{sum(stats['connections'].values())}" + (f" ({inner})" if inner else "")
