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
