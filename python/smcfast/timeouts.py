"""The timeouts of blocking sockets: seconds, None for ever, 0.0 not at all."""

from __future__ import annotations

import math


def checked(value: float | None) -> float | None:
    """What `settimeout` was given.

    :raises ValueError: it is negative or not a number.
    :raises TypeError: it is no real number.
    """
    if value is None:
        return None
    if math.isnan(value) or value < 0:
        raise ValueError("Timeout value out of range")
    return float(value)


class Timeouts:
    """The methods of a blocking socket, or of a listener, about the time that its calls may wait."""

    _timeout: float | None

    @property
    def timeout(self) -> float | None:
        """As `gettimeout`."""
        return self._timeout

    def gettimeout(self) -> float | None:
        """Seconds that a call may wait; None for ever, 0.0 not at all."""
        return self._timeout

    def settimeout(self, value: float | None, /) -> None:
        """Let calls wait for `value` seconds, for ever (None), or not at all (0)."""
        self._timeout = checked(value)

    def setblocking(self, flag: bool, /) -> None:
        """As ``settimeout(None)`` or ``settimeout(0.0)``."""
        self._timeout = None if flag else 0.0

    def getblocking(self) -> bool:
        """Whether calls may wait."""
        return self._timeout != 0.0
