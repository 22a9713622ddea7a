"""Bytes of which both ends know what they must be, so that only their number need be told."""

from __future__ import annotations

import functools
import random
from typing import Final

_LENGTH: Final = 1_000_003
"""Bytes after which a pattern repeats: a prime, so that what is lost or doubled in a ring of any size shows."""


@functools.cache
def _twice(seed: int) -> bytes:
    """Two periods: what is not longer than one can be cut out of them wherever it begins."""
    return random.Random(seed).randbytes(_LENGTH) * 2


class Pattern:
    """The endless bytes of a seed."""

    def __init__(self, seed: int) -> None:
        self._bytes = _twice(seed)

    def take(self, at: int, length: int) -> bytes:
        """The `length` bytes from position `at` on."""
        start = at % _LENGTH
        periods = -(-(start + length) // len(self._bytes))
        return (self._bytes * periods)[start : start + length]

    def check(self, at: int, data: bytes | bytearray | memoryview) -> None:
        """:raises AssertionError: `data` is not what follows position `at`; it says where the first difference is."""
        wanted = self.take(at, len(data))
        if data != wanted:
            given = bytes(data)
            first = next(index for index in range(len(given)) if given[index] != wanted[index])
            raise AssertionError(
                f"wrong from byte {at + first} on: {given[first : first + 16].hex()} "
                f"instead of {wanted[first : first + 16].hex()}"
            )
