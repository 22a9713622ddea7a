"""`start_smc_server`: asyncio's `start_server` over the fastest path that both ends share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
import weakref
from asyncio import trsock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from smcfast import counts, fallback, log, negotiate, streams
from smcfast.acceptor import Acceptor
from smcfast.config import configured
from smcfast.connect import DEFAULT_LIMIT
from smcfast.discovery import Caller, allowed_uids
from smcfast.errors import Fallback, SmcFallbackError, SmcHandshakeError
from smcfast.negotiate import Clock
from smcfast.places import Place, Places
from smcfast.reasons import reason
from smcfast.registration import Registration
from smcfast.spare import Spare

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from smcfast._core import Endpoint, ServerSetup
    from smcfast.config import SmcConfig

WAIT_CLOSED_WAITS: Final = sys.version_info >= (3, 12)
"""Since 3.12 asyncio's ``Server.wait_closed`` waits for the connections as well; before, a closed server was enough."""

_Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Callback: TypeAlias = "Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]"


async def start_smc_server(
    client_connected_cb: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None],
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

    :param ssl: TLS runs over TCP: the path of every connection is "tcp" with reason "tls".
    :param config: `SmcConfig`; None takes ``SMCFAST_*`` variables and defaults.
    :raises OSError: as asyncio, when no address can be bound.
    :raises SmcFallbackError: no connection could be anything but TCP, and ``config.fallback`` is "forbid".
    """
    loop = asyncio.get_running_loop()
    log.set_up()
    config = configured(config)
    _check_tls(ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
    _check_sock(sock, host, port)
    known = fallback.beforehand(config, ssl is not None)
    if known is not None and config.fallback == "forbid":
        raise SmcFallbackError(known)
    if sock is not None:
        sockets = [sock]
    else:
        sockets = await _bound(
            loop, host, port, family=family, flags=flags, reuse_address=reuse_address, reuse_port=reuse_port
        )
    for listener in sockets:
        listener.setblocking(False)
        if keep_alive and sock is None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tls = None if ssl is None else (ssl, ssl_handshake_timeout, ssl_shutdown_timeout)
    server = SmcServer(loop, sockets, client_connected_cb, config, limit, backlog, tls)
    if start_serving:
        try:
            await server.start_serving()
        except BaseException:
            server.close()
            raise
    return server


def _check_tls(ssl: object, handshake_timeout: float | None, shutdown_timeout: float | None) -> None:
    if isinstance(ssl, bool):
        raise TypeError("ssl argument must be an SSLContext or None")
    if ssl is None and handshake_timeout is not None:
        raise ValueError("ssl_handshake_timeout is only meaningful with ssl")
    if ssl is None and shutdown_timeout is not None:
        raise ValueError("ssl_shutdown_timeout is only meaningful with ssl")


def _check_sock(sock: socket.socket | None, host: object, port: object) -> None:
    if isinstance(sock, ssl.SSLSocket):
        raise TypeError("Socket cannot be of type SSLSocket")
    if host is None and port is None and sock is None:
        raise ValueError("Neither host/port nor sock were specified")
    if sock is not None and (host is not None or port is not None):
        raise ValueError("host/port and sock can not be specified at the same time")
    if sock is not None and sock.type != socket.SOCK_STREAM:
        raise ValueError(f"A Stream Socket was expected, got {sock!r}")


async def _bound(loop: asyncio.AbstractEventLoop, host: Any, port: Any, **options: Any) -> list[socket.socket]:
    """Sockets bound as the loop's own ``create_server`` binds them: resolving, flags and errors are all its work."""
    binder = await loop.create_server(asyncio.Protocol, host, port, start_serving=False, **options)
    with contextlib.ExitStack() as unless_complete:
        unless_complete.callback(binder.close)
        sockets = [unless_complete.enter_context(bound.dup()) for bound in binder.sockets]
        unless_complete.pop_all()
    binder.close()
    return sockets


class SmcServer(asyncio.AbstractServer):
    """A server with the semantics of the running interpreter's own `asyncio.Server`.

    `close_clients` and `abort_clients` are there on every version. Connections whose handshake is under way when the
    server is closed are dropped, as asyncio drops those that have no transport yet.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        client_connected_cb: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None],
        config: SmcConfig,
        limit: int,
        backlog: int,
        tls: tuple[ssl.SSLContext, float | None, float | None] | None,
    ) -> None:
        self._loop = loop
        self._sockets: list[socket.socket] | None = sockets
        self._listening: list[_Listening] = []
        self._backlog = backlog
        self._welcome = _Welcome(self, loop, client_connected_cb, config, limit, tls)
        # Weak, so that a transport that its user has abandoned is still noticed as such.
        self._clients: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        self._held_clients: set[asyncio.BaseTransport] = set()
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

    async def start_serving(self) -> None:
        """Accept connections from now on; a second call changes nothing."""
        self._start()
        # As in asyncio: when this returns, the loop has seen the listeners.
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        """Accept connections until the task is cancelled, which closes the server.

        :raises RuntimeError: the server is closed, or another task is here already.
        """
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
        self._welcome.cancel()
        for transport in [*self._clients, *self._held_clients]:
            transport.close()

    def abort_clients(self) -> None:
        """Close every connection at once, without sending what is still in its buffers."""
        self._welcome.cancel()
        for transport in [*self._clients, *self._held_clients]:
            transport.abort()  # type: ignore[attr-defined]

    async def wait_closed(self) -> None:
        """Wait until the server is closed and, from Python 3.12 on, until its last connection is gone."""
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

    def _attach(self, transport: asyncio.BaseTransport) -> None:
        """A connection's transport is open."""
        try:
            self._clients.add(transport)
        except TypeError:  # uvloop's TLS transports take no weak references.
            self._held_clients.add(transport)

    def _detach(self, transport: asyncio.BaseTransport) -> None:
        """A connection's transport has lost its connection."""
        if transport in self._held_clients:
            self._held_clients.discard(transport)
        else:
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

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, backlog: int, welcome: _Welcome) -> None:
        # The name comes first: who can connect can also find it.
        self._registration = welcome.announce(sock)
        self._acceptor: Acceptor | None = None
        try:
            sock.listen(backlog)
            self._acceptor = Acceptor(loop, sock, backlog, welcome.receive)
            if self._registration is not None:
                welcome.spare.take()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        if self._registration is not None:
            self._registration.close()


class _Welcome:
    """What happens to a connection between accept and the user's callback; each has a task of its own."""

    def __init__(
        self,
        server: SmcServer,
        loop: asyncio.AbstractEventLoop,
        callback: _Callback,
        config: SmcConfig,
        limit: int,
        tls: tuple[ssl.SSLContext, float | None, float | None] | None,
    ) -> None:
        self._server = server
        self._loop = loop
        self._callback = callback
        self._config = config
        self._limit = limit
        self._tls = tls
        self._known = fallback.beforehand(config, tls is not None)
        self._places = Places(config.max_pending_handshakes)
        self.spare = Spare()
        self.pending: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Task[None]] = set()

    def announce(self, sock: socket.socket) -> Registration | None:
        """Let this listener's clients look for smcfast, if they should."""
        inet = sock.family in (socket.AF_INET, socket.AF_INET6)
        if not inet or self._known is not None or "rendezvous" not in self._config.discovery:
            return None
        return Registration(self._loop, sock, allowed_uids(self._config))

    def close(self) -> None:
        """Nobody is received any more."""
        self.cancel()
        self.spare.close()

    def cancel(self) -> None:
        """Drop the connections that have no transport yet."""
        for task in self.pending:
            task.cancel()

    def receive(self, conn: socket.socket) -> None:
        """Look for the client's rendezvous at once, then go on in a task."""
        arrival = _Arrival(conn, Clock.start(self._loop, self._config), self._places.place())
        try:
            if self._known is None and conn.family in (socket.AF_INET, socket.AF_INET6):
                arrival.caller = Caller(conn, self._config, self._places.full, self.spare)
                arrival.setup = negotiate.greet(arrival.clock, arrival.caller, self._config)
                if arrival.setup is not None:
                    arrival.place.take()
        except BaseException:
            arrival.close()
            raise
        task = self._loop.create_task(self._welcome(arrival))
        self.pending.add(task)
        task.add_done_callback(lambda task: self._arrived(task, arrival))

    def _arrived(self, task: asyncio.Task[None], arrival: _Arrival) -> None:
        # A task that is cancelled before its first step never sees its coroutine's own clean-up.
        arrival.close()
        self.pending.discard(task)
        self._server._wake_if_idle()

    async def _welcome(self, arrival: _Arrival) -> None:
        try:
            reader, writer = await self._streams(arrival)
        except SmcFallbackError:
            return  # It is logged and counted, and the connection is closed.
        except SmcHandshakeError as error:
            fallback.fail(self._config, log.peer(arrival.conn), error.fallback)
            return
        except Exception as error:  # noqa: BLE001 - to the loop's handler, as asyncio does
            # asyncio's rule: clients that vanish, or fail at TLS, are of interest to a debugger only.
            if self._loop.get_debug() or not isinstance(error, OSError):
                message = "Error on transport creation for incoming connection"
                self._loop.call_exception_handler({"message": message, "exception": error})
            return
        self._call(reader, writer)

    async def _streams(self, arrival: _Arrival) -> _Streams:
        found = self._known or reason("not_inet")
        if arrival.caller is not None:
            answer = await negotiate.as_server(
                arrival.clock, arrival.conn, arrival.caller, arrival.setup, arrival.place, self._config
            )
            if not isinstance(answer, Fallback):
                return self._on_ring(arrival, answer)
            found = answer
        return await self._on_tcp(arrival, found)

    def _on_ring(self, arrival: _Arrival, endpoint: Endpoint) -> _Streams:
        info = negotiate.describe(arrival.clock, endpoint)
        pair = streams.ring_streams(self._loop, arrival.conn, endpoint, info, limit=self._limit, server=self._server)
        arrival.delivered = True
        counts.count_connection(info.path)
        log.established("server", arrival.conn, info)
        return pair

    async def _on_tcp(self, arrival: _Arrival, why: Fallback) -> _Streams:
        info = fallback.settle(self._config, "server", log.peer(arrival.conn), why)
        context, handshake_timeout, shutdown_timeout = self._tls or (None, None, None)
        arrival.delivered = True  # From here on the socket is the transport's, even if it fails.
        return await streams.tcp_streams(
            self._loop,
            arrival.conn,
            info,
            arrival.clock.elapsed_us,
            limit=self._limit,
            ssl=context,
            ssl_handshake_timeout=handshake_timeout,
            ssl_shutdown_timeout=shutdown_timeout,
            server_side=True,
            server=self._server,
        )

    def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand the streams to the user; what the callback raises ends the connection."""
        try:
            result = self._callback(reader, writer)
        except Exception as error:  # noqa: BLE001 - to the loop's handler, as asyncio does
            self._failed(writer, error)
            return
        if not asyncio.iscoroutine(result):
            return
        task = self._loop.create_task(result)
        self._running.add(task)
        task.add_done_callback(lambda task: self._called(task, writer))

    def _called(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._running.discard(task)
        if task.cancelled():
            writer.transport.close()
            return
        error = task.exception()
        if error is not None:
            self._failed(writer, error)

    def _failed(self, writer: asyncio.StreamWriter, error: BaseException) -> None:
        self._loop.call_exception_handler(
            {
                "message": "Unhandled exception in client_connected_cb",
                "exception": error,
                "transport": writer.transport,
            }
        )
        writer.transport.close()


class _Arrival:
    """One accepted connection until it is delivered to a transport, or closed."""

    def __init__(self, conn: socket.socket, clock: Clock, place: Place) -> None:
        self.conn = conn
        self.clock = clock
        self.place = place
        self.caller: Caller | None = None
        self.setup: ServerSetup | None = None
        self.delivered = False

    def close(self) -> None:
        """Close what no transport has taken over, and leave the place."""
        self.place.leave()
        if self.caller is not None:
            self.caller.close()
        if not self.delivered:
            self.conn.close()
