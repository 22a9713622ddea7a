"""The last step of every connection, at either end and on any path: its transport, with the protocol that was asked for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from smcfast import _native, counts, log, page
from smcfast.held import HeldSocket

if _native.AVAILABLE:
    from smcfast._loop import engine
    from smcfast.transport import RingTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from smcfast._core import Endpoint
    from smcfast.info import SmcInfo
    from smcfast.tls import Tls

Make: TypeAlias = "Callable[[Endpoint | None], asyncio.BaseProtocol]"
"""Makes a protocol: one that may take its bytes from the endpoint by itself, or, for None, one that is handed them."""

_Made: TypeAlias = "tuple[asyncio.Transport, asyncio.BaseProtocol]"
Elapsed: TypeAlias = "Callable[[], int]"
"""Asked for `SmcInfo.setup_us` when the connection is ready."""


class Owner(Protocol):
    """What a server is to its connections."""

    def _attach(self, transport: asyncio.Transport) -> Callable[[], object]:
        """A connection's transport is open; what this returns is to be called when it is lost."""


class Delivered(NamedTuple):
    """A connection that is ready."""

    transport: asyncio.Transport
    protocol: asyncio.BaseProtocol
    info: SmcInfo


@dataclass(frozen=True)
class Delivery:
    """What one entry point was asked for, whatever path its connections take.

    :param owner: the server, at its end.
    """

    loop: asyncio.AbstractEventLoop
    make: Make
    tls: Tls | None = None
    owner: Owner | None = None

    async def over_ring(self, sock: socket.socket, endpoint: Endpoint, info: SmcInfo, elapsed_us: Elapsed) -> Delivered:
        """A connection on rings; `sock` is its TCP connection. What there is belongs to the transport, also if this raises."""
        transport: asyncio.Transport
        if self.tls is None:
            try:
                protocol = self.make(endpoint)
                ring = transport = self._ring(sock, endpoint, info, protocol)
            except BaseException:
                sock.close()
                raise
        else:
            shaken = self.loop.create_future()
            try:
                protocol = self.make(None)
                layer = self.tls.layer(self.loop, protocol, shaken, server_side=self.owner is not None)
                ring = self._ring(sock, endpoint, info, layer)
            except BaseException:
                sock.close()
                raise
            transport = layer._app_transport
            try:
                await shaken
            except BaseException:
                transport.close()
                raise
            finally:
                del shaken, layer  # an exception remembers this frame
            info = dataclasses.replace(info, setup_us=elapsed_us())
            ring.tell(info)
        if self.owner is not None:
            ring.when_closed(self.owner._attach(transport))
        self._announce(sock, info)
        return Delivered(transport, protocol, info)

    def _ring(
        self, sock: socket.socket, endpoint: Endpoint, info: SmcInfo, protocol: asyncio.BaseProtocol
    ) -> RingTransport:
        ring = RingTransport(self.loop, engine(self.loop), sock, endpoint, protocol, {"smc": info})
        page.show_ring(self.loop, endpoint, *(ring.get_extra_info(name) for name in ("sockname", "peername")))
        return ring

    async def over_socket(self, sock: socket.socket, info: SmcInfo, elapsed_us: Elapsed) -> Delivered:
        """A connection of TCP or of the kernel's SMC: the loop's own transport does all the work.

        It takes over `sock`, also if this raises.
        """
        held = HeldSocket.of(sock, info)
        try:
            protocol = self.make(None)
            if info.path == "kernel":
                # As asyncio does by itself where the protocol is TCP's.
                held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            held.close()
            raise
        code = 0 if info.fallback is None else info.fallback.code
        row = page.show_socket(self.loop, held, info.path, self._role, code)
        if row is not None:
            held.when_closed(row.close)
        transport = await self._loops_own(protocol, held)
        held.info = info = dataclasses.replace(info, setup_us=elapsed_us())
        if self.owner is not None:
            held.when_closed(self.owner._attach(transport))
        if info.path != "tcp":  # that is counted and told where the reason is
            self._announce(held, info)
        return Delivered(transport, protocol, info)

    def _announce(self, sock: socket.socket, info: SmcInfo) -> None:
        counts.count_connection(info.path)
        log.established(self._role, sock, info)

    @property
    def _role(self) -> str:
        return "client" if self.owner is None else "server"

    async def _loops_own(self, protocol: asyncio.BaseProtocol, sock: socket.socket) -> asyncio.Transport:
        server_side = self.owner is not None
        options: dict[str, Any] = {} if self.tls is None else self.tls.options(server_side=server_side)
        if server_side:
            making = self.loop.connect_accepted_socket(lambda: protocol, sock, **options)
        else:
            making = self.loop.create_connection(lambda: protocol, sock=sock, **options)
        if isinstance(self.loop, asyncio.BaseEventLoop):
            transport, _ = await (making if self.tls is None else self._asyncios_tls(making, sock))
            return transport
        return await self._uvloops_own(self.loop.create_task(making))

    async def _asyncios_tls(self, making: Coroutine[Any, Any, _Made], sock: socket.socket) -> _Made:
        """In asyncio, a TLS that is given up before it has begun is not: its close comes too early, and it goes on by itself."""
        begun: list[bool] = []
        self.loop.call_soon(self.loop.call_soon, begun.append, True)
        try:
            return await making
        except BaseException:
            if not begun:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            raise

    async def _uvloops_own(self, making: asyncio.Task[_Made]) -> asyncio.Transport:
        """uvloop crashes where a connection is given up before its protocol has heard of it, which takes two turns of the loop.

        And a protocol that has heard of it must hear of its end.
        """
        try:
            await asyncio.wait([making])
        except asyncio.CancelledError:
            making.add_done_callback(_close_what_came)
            if self.tls is not None:
                self.loop.call_soon(_give_up_soon, self.loop, making)
            raise
        try:
            transport, _ = making.result()
        finally:
            del making  # an exception remembers this frame
        return transport


def _give_up_soon(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    loop.call_soon(lambda: task.cancel())


def _close_what_came(task: asyncio.Task[_Made]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[0].close()
