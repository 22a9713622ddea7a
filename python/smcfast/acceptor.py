"""The accept loop of a listening socket, whatever its family is."""

from __future__ import annotations

from asyncio import trsock
from typing import TYPE_CHECKING, Final

from smcfast import netlink

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

RETRY_DELAY: Final = 1.0
"""Seconds for which a listener rests when descriptors or memory have run out."""


class Acceptor:
    """Hands every connection of a listening socket to `receive`, until `close`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        backlog: int,
        receive: Callable[[socket.socket], None],
    ) -> None:
        """:param backlog: that of the listener, which never blocks; one more than so many may wait at once."""
        self._loop = loop
        self._sock = sock
        self._turn = backlog + 1
        self._receive = receive
        self._rest: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        """Accept nobody any more; the listener itself is the caller's to close."""
        if self._rest is not None:
            self._rest.cancel()
        self._loop.remove_reader(self._sock.fileno())

    def _resume(self) -> None:
        self._rest = None
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        """Take everybody who waits, at most a full queue in one turn of the loop."""
        for _ in range(self._turn):
            try:
                conn, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in netlink.EXHAUSTED:
                    raise
                self._pause(error)
                return
            conn.setblocking(False)
            self._receive(conn)

    def _pause(self, error: OSError) -> None:
        """The kernel would report the listener as ready again and again."""
        self._loop.call_exception_handler(
            {
                "message": "socket.accept() out of system resource",
                "exception": error,
                "socket": trsock.TransportSocket(self._sock),
            }
        )
        self._loop.remove_reader(self._sock.fileno())
        self._rest = self._loop.call_later(RETRY_DELAY, self._resume)
