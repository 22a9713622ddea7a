"""The user's callback of a server of streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from smcfast.streams import SmcStreamReader, SmcStreamWriter

Callback: TypeAlias = Callable[[SmcStreamReader, SmcStreamWriter], Awaitable[None] | None]


class Handlers:
    """Calls it for each connection, in a task of its own if it is a coroutine function; what it raises ends the connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callback) -> None:
        self._loop = loop
        self._callback = callback
        self._running: set[asyncio.Task[None]] = set()

    def call(self, reader: SmcStreamReader, writer: SmcStreamWriter) -> None:
        """Hand the streams to the user."""
        transport = writer.transport
        try:
            result = self._callback(reader, writer)
        except Exception as error:  # noqa: BLE001 - to the loop's handler, as asyncio does
            self._failed(transport, error)
            return
        if not asyncio.iscoroutine(result):
            return
        task = self._loop.create_task(result)
        self._running.add(task)
        # The streams are the callback's alone: when it drops them, they are dropped.
        task.add_done_callback(lambda task: self._called(task, transport))

    def _called(self, task: asyncio.Task[None], transport: asyncio.WriteTransport) -> None:
        self._running.discard(task)
        if task.cancelled():
            transport.close()
            return
        error = task.exception()
        if error is not None:
            self._failed(transport, error)

    def _failed(self, transport: asyncio.WriteTransport, error: BaseException) -> None:
        self._loop.call_exception_handler(
            {
                "message": "Unhandled exception in client_connected_cb",
                "exception": error,
                "transport": transport,
            }
        )
        transport.close()
