"""`start_smc_server`: asyncio's `start_server` over the fastest path that both ends share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import weakref
from asyncio import trsock
from typing import TYPE_CHECKING, Any, Final

from smcfast import fallback, kernel, log, option, order, page, streams
from smcfast.acceptor import Acceptor
from smcfast.config import configured
from smcfast.connect import DEFAULT_LIMIT
from smcfast.delivery import Delivery
from smcfast.errors import SmcFallbackError
from smcfast.handlers import Handlers
from smcfast.tls import of_server
from smcfast.welcome import Welcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from smcfast._core import StatusRow
    from smcfast.config import SmcConfig
    from smcfast.delivery import Delivered, Make
    from smcfast.streams import SmcStreamReader, SmcStreamWriter
    from smcfast.tls import Tls

WAIT_CLOSED_WAITS: Final = sys.version_info >= (3, 12)
"""Since 3.12 asyncio's ``Server.wait_closed`` waits for the connections as well; before, a closed server was enough."""


async def start_smc_server(
    client_connected_cb: Callable[[SmcStreamReader, SmcStreamWriter], Awaitable[None] | None],
    host: str | Sequence[str] | None = None,
    port: int | str | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    family: int = socket.AF_UNSPEC,
    flags: int = socket.AI_PASSIVE,
    sock: socket.socket | None = None,
    backlog: int = 100,
    ssl: ssl.SSLContext | None = None,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
    keep_alive: bool | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
    start_serving: bool = True,
    config: SmcConfig | None = None,
) -> SmcServer:
    """Serve `host` and `port`; the arguments are those of `asyncio.start_server`.

    `client_connected_cb` gets a reader and a writer for each connection, whatever its path is, and may be a coroutine
    function. An exception in it goes to the loop's exception handler and closes the connection.

    :param config: `SmcConfig`; None takes ``SMCFAST_*`` variables and defaults.
    :raises OSError: as asyncio, when no address can be bound.
    :raises SmcFallbackError: no connection could be anything but TCP, and ``config.fallback`` is "forbid".
    """
    loop = asyncio.get_running_loop()
    log.set_up()
    handlers = Handlers(loop, client_connected_cb)
    server = await _serving(
        streams.maker(loop, limit, server_side=True),
        lambda delivered: handlers.call(*streams.pair(loop, delivered)),
        configured(config),
        of_server(ssl, ssl_handshake_timeout, ssl_shutdown_timeout),
        host,
        port,
        sock,
        backlog,
        keep_alive,
        family=family,
        flags=flags,
        reuse_address=reuse_address,
        reuse_port=reuse_port,
    )
    return await _started(server, start_serving)


async def create_smc_server(
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    host: str | Sequence[str] | None = None,
    port: int | str | None = None,
    *,
    family: int = socket.AF_UNSPEC,
    flags: int = socket.AI_PASSIVE,
    sock: socket.socket | None = None,
    backlog: int = 100,
    ssl: ssl.SSLContext | None = None,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
    keep_alive: bool | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
    start_serving: bool = True,
    config: SmcConfig | None = None,
) -> SmcServer:
    """Serve `host` and `port`; the arguments are those of the event loop's `create_server`.

    Each connection, whatever its path is, has a protocol of its own from `protocol_factory`. `smcfast.smc_info(transport)`
    tells the path. All else is as `start_smc_server` says.
    """
    log.set_up()
    server = await _serving(
        lambda _: protocol_factory(),
        None,
        configured(config),
        of_server(ssl, ssl_handshake_timeout, ssl_shutdown_timeout),
        host,
        port,
        sock,
        backlog,
        keep_alive,
        family=family,
        flags=flags,
        reuse_address=reuse_address,
        reuse_port=reuse_port,
    )
    return await _started(server, start_serving)


async def _serving(
    make: Make,
    when_delivered: Callable[[Delivered], None] | None,
    config: SmcConfig,
    tls: Tls | None,
    host: str | Sequence[str] | None,
    port: int | str | None,
    sock: socket.socket | None,
    backlog: int,
    keep_alive: bool | None,
    **binding: Any,
) -> SmcServer:
    """A server that has its sockets and is ready to start."""
    loop = asyncio.get_running_loop()
    _check_sock(sock, host, port)
    known = fallback.beforehand(config)
    if known is not None and config.fallback == "forbid":
        raise SmcFallbackError(known)
    if sock is not None:
        sockets = [sock]
    else:
        sockets = await _bound(loop, host, port, **binding)
        if known is None:
            sockets = _by_path(sockets, config)
    if known is None and option.is_wanted(config):
        try:
            await option.ready()
        except BaseException:
            for listener in sockets if sock is None else ():
                listener.close()
            raise
    for listener in sockets:
        listener.setblocking(False)
        if keep_alive and sock is None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return SmcServer(loop, sockets, make, when_delivered, config, backlog, tls)


async def _started(server: SmcServer, start_serving: bool) -> SmcServer:
    if start_serving:
        try:
            await server.start_serving()
        except BaseException:
            server.close()
            raise
    return server


def _check_sock(sock: socket.socket | None, host: object, port: object) -> None:
    if isinstance(sock, ssl.SSLSocket):
        raise TypeError("Socket cannot be of type SSLSocket")
    if host is None and port is None and sock is None:
        raise ValueError("Neither host/port nor sock were specified")
    if sock is not None and (host is not None or port is not None):
        raise ValueError("host/port and sock can not be specified at the same time")
    if sock is not None and sock.type != socket.SOCK_STREAM:
        raise ValueError(f"A Stream Socket was expected, got {sock!r}")


class NeverMade(asyncio.Protocol):
    """The protocol of a server of the loop's own that never serves, by which `smcfast run` knows it."""


async def _bound(loop: asyncio.AbstractEventLoop, host: Any, port: Any, **options: Any) -> list[socket.socket]:
    """Sockets bound as the loop's own ``create_server`` binds them: resolving, flags and errors are all its work."""
    binder = await loop.create_server(NeverMade, host, port, start_serving=False, **options)
    with contextlib.ExitStack() as unless_complete:
        unless_complete.callback(binder.close)
        sockets = [unless_complete.enter_context(bound.dup()) for bound in binder.sockets]
        unless_complete.pop_all()
    binder.close()
    return sockets


def _by_path(sockets: list[socket.socket], config: SmcConfig) -> list[socket.socket]:
    """The bound `sockets`, or in the place of each one of the kernel's SMC.

    :raises OSError: the kernel refuses; all are closed.
    """
    found: list[socket.socket] = []
    try:
        for sock in sockets:
            found.append(kernel.rebound(sock) if order.is_kernels(config, sock.family) else sock)  # noqa: PERF401
    except BaseException:
        for sock in (*found, *sockets):
            sock.close()
        raise
    return found


class SmcServer(asyncio.AbstractServer):
    """A server with the semantics of the running interpreter's own `asyncio.Server`.

    `close_clients` and `abort_clients` are there on every version. Connections whose handshake is under way when the
    server is closed are dropped, as asyncio drops those that have no transport yet.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        make: Callable[[Any], asyncio.BaseProtocol],
        when_delivered: Callable[[Any], None] | None,
        config: SmcConfig,
        backlog: int,
        tls: Any,
    ) -> None:
        self._loop = loop
        self._pid = os.getpid()
        self._sockets: list[socket.socket] | None = sockets
        self._listening: list[_Listening] = []
        self._backlog = backlog
        self._welcome = Welcome(Delivery(loop, make, tls, self), config, when_delivered, self._wake_if_idle)
        # Weak, so that a transport that its user has abandoned is still noticed as such.
        self._clients: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._held_clients: set[asyncio.Transport] = set()
        self._waiters: list[asyncio.Future[None]] | None = []
        self._serving = False
        self._forever: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} sockets={self.sockets!r}>"

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the server belongs to."""
        return self._loop

    def is_serving(self) -> bool:
        """Does the server accept connections?"""
        return self._serving

    @property
    def sockets(self) -> tuple[trsock.TransportSocket, ...]:
        """The listening sockets; none once the server is closed."""
        return () if self._sockets is None else tuple(trsock.TransportSocket(sock) for sock in self._sockets)

    def _check_process(self) -> None:
        """A child shares the epoll set of the loop with its parent: what it took out, the parent would not hear any more.

        :raises RuntimeError: the server was made by the process that forked.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("this server belongs to the process that forked; a child must start its own")

    async def start_serving(self) -> None:
        """Accept connections from now on; a second call changes nothing."""
        self._check_process()
        self._start()
        # As in asyncio: when this returns, the loop has seen the listeners.
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        """Accept connections until the task is cancelled, which closes the server.

        :raises RuntimeError: the server is closed, or another task is here already.
        """
        self._check_process()
        if self._forever is not None:
            raise RuntimeError(f"server {self!r} is already being awaited on serve_forever()")
        if self._sockets is None:
            raise RuntimeError(f"server {self!r} is closed")
        self._start()
        self._forever = self._loop.create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            try:
                self.close()
                await self.wait_closed()
            finally:
                raise
        finally:
            self._forever = None

    def close(self) -> None:
        """Stop accepting and close the listening sockets; connections that are established go on."""
        self._check_process()
        if self._sockets is None:
            return
        sockets, self._sockets = self._sockets, None
        for listening in self._listening:
            listening.close()
        for sock in sockets:
            sock.close()
        self._serving = False
        self._welcome.close()
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
            self._forever = None
        self._wake_if_idle()

    def close_clients(self) -> None:
        """Close every connection: what was written is still sent."""
        self._check_process()
        self._welcome.cancel()
        for transport in [*self._clients, *self._held_clients]:
            transport.close()

    def abort_clients(self) -> None:
        """Close every connection at once, without sending what is still in its buffers."""
        self._check_process()
        self._welcome.cancel()
        for transport in [*self._clients, *self._held_clients]:
            transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the server is closed and, from Python 3.12 on, until its last connection is gone."""
        self._check_process()
        if self._waiters is None or (self._sockets is None and not WAIT_CLOSED_WAITS):
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _start(self) -> None:
        if self._serving or self._sockets is None:
            return
        self._serving = True
        for sock in self._sockets:
            self._listening.append(_Listening(self._loop, sock, self._backlog, self._welcome))

    def _attach(self, transport: asyncio.Transport) -> Callable[[], None]:
        """A connection's transport is open; what this returns is called when it has lost its connection."""
        try:
            held = weakref.ref(transport)
        except TypeError:  # uvloop's TLS transports take no weak references.
            self._held_clients.add(transport)
            return lambda: self._detach(transport)
        self._clients.add(transport)
        return lambda: self._detach(held())

    def _detach(self, transport: asyncio.Transport | None) -> None:
        if transport in self._held_clients:
            self._held_clients.discard(transport)
        elif transport is not None:
            self._clients.discard(transport)
        self._wake_if_idle()

    def _wake_if_idle(self) -> None:
        busy = self._clients or self._held_clients or self._welcome.pending
        if self._sockets is not None or busy or self._waiters is None:
            return
        waiters, self._waiters = self._waiters, None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Listening:
    """One listening socket that is served, and its name."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, backlog: int, welcome: Welcome) -> None:
        is_smc = kernel.is_smc(sock)
        # The name comes first: who can connect can also find it. Of the kernel's SMC it is that of the TCP socket within,
        # which cannot be found before it listens.
        self._announced = [] if is_smc else welcome.announce(sock)
        self._acceptor: Acceptor | None = None
        self._row: StatusRow | None = None
        try:
            is_marked = welcome.offer is not None and welcome.offer.mark(sock)
            sock.listen(backlog)
            if is_smc:
                self._announced = welcome.announce(sock)
            if is_marked and welcome.offer is not None:
                welcome.offer.check(sock)
            self._acceptor = Acceptor(loop, sock, backlog, welcome.receive)
            best = welcome.best if self._announced else "kernel" if is_smc else "tcp"
            self._row = page.show_listener(loop, sock, best)
            if self._announced:
                welcome.spare.take()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._row is not None:
            self._row.close()
        if self._acceptor is not None:
            self._acceptor.close()
        for each in self._announced:
            each.close()
