"""A descriptor that is kept for the moment in which there is no other."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Spare:
    """One descriptor of no other use, from `take` to `close`."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None

    def take(self) -> None:
        """Have it, if that is possible now."""
        if self._sock is None:
            with contextlib.suppress(OSError):
                self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """Inside, its place is free; it is the caller's to have left it by the end."""
        self.close()
        try:
            yield
        finally:
            self.take()

    def close(self) -> None:
        """Give it up."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
