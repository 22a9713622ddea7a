"""This process's counters: connections by path, fallbacks by reason. Thread-safe."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, TypedDict

from smcfast import reasons

if TYPE_CHECKING:
    from smcfast.errors import Fallback


class Stats(TypedDict):
    """What `stats` returns; every figure counts from the start of the process."""

    connections: dict[str, int]
    """Streams that were opened or accepted, by path."""
    fallbacks: dict[str, int]
    """Connections that could only be TCP, by reason. Those of `smcfast.reasons.names` are always there and in that order;
    others come behind them when a peer has declined with a code that this version does not use. Forbidden and failed ones
    are included."""
    forbidden: int
    """Fallbacks that ``fallback="forbid"`` turned into an error: they are no stream."""
    failed: int
    """Connections of a server that a broken handshake has spoiled: they are closed, and no stream either. So the sum of
    `fallbacks` is ``connections["tcp"] + forbidden + failed``."""


_lock = threading.Lock()
_connections: Counter[str] = Counter({"smc-d": 0, "tcp": 0})
_fallbacks: Counter[str] = Counter()
_forbidden = 0
_failed = 0


def count_connection(path: str) -> None:
    """One more stream on `path`."""
    with _lock:
        _connections[path] += 1


def count_fallback(why: Fallback, *, forbidden: bool) -> None:
    """One more connection that can only be TCP."""
    global _forbidden
    with _lock:
        _fallbacks[why.name] += 1
        if forbidden:
            _forbidden += 1
        else:
            _connections["tcp"] += 1


def count_failure(why: Fallback) -> None:
    """One more connection of a server that is closed because its handshake broke off."""
    global _failed
    with _lock:
        _fallbacks[why.name] += 1
        _failed += 1


def stats() -> Stats:
    """A snapshot of this process's counters."""
    with _lock:
        fallbacks = dict.fromkeys(reasons.names(), 0) | _fallbacks
        return Stats(connections=dict(_connections), fallbacks=fallbacks, forbidden=_forbidden, failed=_failed)
