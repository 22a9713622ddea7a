"""Peers that cost a fruitless wait: kept for a while, so that the next connection does not pay again."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

ENTRIES_MAX: Final = 1024
LISTENER_SECONDS: Final = 30.0
DESTINATION_SECONDS: Final = 600.0


class Remembered:
    """At most `ENTRIES_MAX` keys, each for `seconds`; thread-safe. When full, the oldest one goes."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[Hashable, float] = {}

    def add(self, key: Hashable) -> None:
        """Keep `key` from now on."""
        with self._lock:
            self._until.pop(key, None)
            self._until[key] = self._clock() + self._seconds
            while len(self._until) > ENTRIES_MAX:
                del self._until[next(iter(self._until))]

    def __contains__(self, key: Hashable) -> bool:
        if not self._until:
            return False
        with self._lock:
            until = self._until.get(key)
            if until is None:
                return False
            if self._clock() < until:
                return True
            del self._until[key]
            return False


listeners = Remembered(LISTENER_SECONDS)
"""Cookies of listeners whose acceptor did not answer."""
destinations = Remembered(DESTINATION_SECONDS)
"""Addresses of assumed peers that did not speak SMC."""
