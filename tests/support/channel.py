"""Values between a test and its child process: JSON lines over a socket pair, for blocking and for async code."""

from __future__ import annotations

import asyncio
import json
import select
import time
from typing import TYPE_CHECKING, Any

from support.patience import PATIENCE

if TYPE_CHECKING:
    import socket

GUARD = 30.0 * PATIENCE  # seconds to wait for the other side


class ChannelClosedError(Exception):
    """The other side is gone."""


class Channel:
    """One end. ``receive`` blocks the thread, ``areceive`` only the task; ``send`` does neither for a line or two."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._pending = b""

    def send(self, value: Any) -> None:
        """Hand over anything that JSON knows."""
        data = json.dumps(value).encode() + b"\n"
        while data:
            self._wait(select.POLLOUT, time.monotonic() + GUARD)
            data = data[self._end.send(data) :]

    def receive(self, limit: float = GUARD) -> Any:
        """The next value.

        :raises TimeoutError: after ``limit`` seconds.
        :raises ChannelClosedError: when the other side ended without one.
        """
        deadline = time.monotonic() + limit
        while b"\n" not in self._pending:
            self._wait(select.POLLIN, deadline)
            self._take(self._read())
        return self._next()

    async def areceive(self, limit: float = GUARD) -> Any:
        """:meth:`receive` for a task."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(limit):
            while b"\n" not in self._pending:
                self._take(await loop.sock_recv(self._end, 65536))
        return self._next()

    def close(self) -> None:
        self._end.close()

    def _wait(self, events: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._end, events)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError("the other process says nothing")

    def _read(self) -> bytes:
        try:
            return self._end.recv(65536)
        except ConnectionResetError:  # it ended with something of ours unread
            return b""

    def _take(self, data: bytes) -> None:
        if not data:
            raise ChannelClosedError
        self._pending += data

    def _next(self) -> Any:
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)
