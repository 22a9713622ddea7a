"""`SmcListener`: a listener of anyio for any path."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import Listener, SocketAttribute
from anyio.lowlevel import checkpoint

from smcfast import SmcServer, start_smc_server
from smcfast.connect import DEFAULT_LIMIT
from smcfast.contrib import port as ports
from smcfast.contrib.anyio import backend
from smcfast.contrib.anyio.address import short
from smcfast.contrib.anyio.stream import SmcStream

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from anyio.abc import IPAddressType, TaskGroup

    from smcfast import SmcConfig


async def create_smc_listener(
    *,
    local_host: IPAddressType | None = None,
    local_port: int = 0,
    family: int = socket.AF_UNSPEC,
    backlog: int = 100,
    reuse_port: bool = False,
    config: SmcConfig | None = None,
) -> SmcListener:
    """Listen on `local_host`, or on all addresses of this host; connections are made from now on.

    :param local_port: 0 takes a free one, the same for all addresses.
    :param family: AF_INET or AF_INET6, for a `local_host` with addresses of both or for None.
    :param backlog: connections that may wait for `SmcListener.serve`; those beyond are reset.
    :param config: `SmcConfig`; None takes ``SMCFAST_*`` variables and defaults.
    :raises OSError: no address can be bound.
    :raises SmcFallbackError: no connection could be anything but TCP, and ``config.fallback`` is "forbid".
    :raises RuntimeError: anyio does not run on asyncio.
    """
    backend.check()
    waiting = _Waiting(backlog)

    async def bind(port: int) -> SmcServer:
        host = None if local_host is None else str(local_host)
        options: dict[str, Any] = {"family": family, "backlog": backlog, "reuse_port": reuse_port, "config": config}
        return await start_smc_server(waiting.add, host, port, limit=DEFAULT_LIMIT, start_serving=False, **options)

    try:
        server = await ports.shared(bind, local_port)
    except BaseException:
        waiting.close()
        raise
    listener = SmcListener(server, waiting)
    try:
        await server.start_serving()
    except BaseException:
        listener.close()
        raise
    return listener


class _Waiting:
    """Connections that were made and that nobody has accepted yet."""

    def __init__(self, limit: int) -> None:
        self._put, self._get = anyio.create_memory_object_stream[SmcStream](limit)

    def add(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let a connection wait, or reset it if it is one too many or the listener is closed."""
        try:
            self._put.send_nowait(SmcStream(reader, writer))
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            writer.transport.abort()

    async def next(self) -> SmcStream:
        """:raises EndOfStream: closed."""
        return await self._get.receive()

    def close(self) -> None:
        """Reset those that wait."""
        self._put.close()
        with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError):
            while True:
                self._get.receive_nowait().reset()
        self._get.close()


class SmcListener(Listener[SmcStream]):
    """A listener, with the rules of anyio's own for TCP. It may have several sockets, all with one port."""

    def __init__(self, server: SmcServer, waiting: _Waiting) -> None:
        """Take over `server`, which puts its connections into `waiting`."""
        self._server = server
        self._waiting = waiting
        self._accepting = anyio.ResourceGuard("accepting connections from")
        self._closed = False
        self._sockets = server.sockets
        self._addresses = [sock.getsockname() for sock in self._sockets]

    async def accept(self) -> SmcStream:
        """The next connection; one whose accept was cancelled is the next one's.

        :raises ClosedResourceError: the listener is closed.
        :raises BusyResourceError: another task accepts.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        with self._accepting:
            try:
                return await self._waiting.next()
            except anyio.EndOfStream:
                raise anyio.ClosedResourceError from None

    async def serve(self, handler: Callable[[SmcStream], Any], task_group: TaskGroup | None = None) -> None:
        """Start ``handler(stream)`` for each connection, in `task_group` or in a group for the time of this call.

        :raises ClosedResourceError: the listener was closed.
        :raises BusyResourceError: another task serves.
        """
        async with contextlib.AsyncExitStack() as stack:
            if task_group is None:
                task_group = await stack.enter_async_context(anyio.create_task_group())
            while True:
                task_group.start_soon(handler, await self.accept())

    async def aclose(self) -> None:
        """Stop listening. Connections that were accepted go on, those that wait are reset."""
        self.close()
        await checkpoint()

    def close(self) -> None:
        """`aclose` without its checkpoint."""
        if not self._closed:
            self._closed = True
            self._server.close()
            self._waiting.close()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of anyio's `SocketAttribute` that a listener has, of the first socket."""
        sock, address = self._sockets[0], self._addresses[0]
        return {
            SocketAttribute.raw_socket: lambda: sock,
            SocketAttribute.family: lambda: sock.family,
            SocketAttribute.local_address: lambda: short(address),
            SocketAttribute.local_port: lambda: address[1],
        }
