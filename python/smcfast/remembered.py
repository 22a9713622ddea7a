"""Peers that cost a fruitless wait: kept for a while, so that the next connection does not pay again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

ENTRIES_MAX: Final = 1024
LISTENER_SECONDS: Final = 30.0
DESTINATION_SECONDS: Final = 600.0


class Remembered:
    """At most `ENTRIES_MAX` keys, each for `seconds`. When full, the oldest one goes.

    Thread-safe without a lock, which a fork might leave locked in the child: each step is one of a dict's own.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[Hashable, float] = {}

    def add(self, key: Hashable) -> None:
        """Keep `key` from now on."""
        self._until.pop(key, None)
        self._until[key] = self._clock() + self._seconds
        for oldest in list(self._until)[:-ENTRIES_MAX]:
            self._until.pop(oldest, None)

    def __contains__(self, key: Hashable) -> bool:
        until = self._until.get(key)
        if until is None:
            return False
        if self._clock() < until:
            return True
        self._until.pop(key, None)
        return False


listeners: Final = Remembered(LISTENER_SECONDS)
"""Cookies of listeners whose acceptor did not answer."""
destinations: Final = Remembered(DESTINATION_SECONDS)
"""Addresses of assumed peers that did not speak SMC."""
announced: Final = Remembered(DESTINATION_SECONDS)
"""Addresses that answered the option and did not speak SMC, or did not answer because of it."""
