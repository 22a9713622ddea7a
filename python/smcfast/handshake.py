"""Drives the core's set-up machines: CLC over TCP, memory over the rendezvous connection.

The machines do no I/O and have no clock; what is here gives them exactly the bytes they ask for, since application
bytes may follow a Decline at once. Whoever calls owns the TCP socket; the rendezvous connection is the caller's where
it is an argument.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

from smcfast import rendezvous
from smcfast.errors import Fallback, SmcHandshakeError
from smcfast.reasons import DECLINED_NO_DEVICE, DECLINED_VERSION, diagnosis, explained, reason

if TYPE_CHECKING:
    import asyncio

    from smcfast._core import ClientSetup, ServerSetup
    from smcfast.assume import Door


class Machine(Protocol):
    """What both set-up machines have in common: the CLC exchange over TCP."""

    def wanted(self) -> int:
        """Bytes to read next, 0 for none."""

    def receive(self, data: bytes, now: float, /) -> None:
        """Take at most `wanted` bytes; b"" is the end of the stream."""

    def transmit(self) -> bytes:
        """Bytes to send now."""

    def deadline(self) -> float:
        """Loop time at which `timeout` is due."""

    def timeout(self, now: float) -> None:
        """The deadline has passed."""

    def outcome(self) -> tuple[str, int, str] | None:
        """("established" | "declined" | "failed", code, text), None while under way."""


async def as_client(
    loop: asyncio.AbstractEventLoop, tcp: socket.socket, conn: socket.socket, setup: ClientSetup, deadline: float
) -> Fallback | None:
    """Go through the handshake with the server that called on `conn`; None when the ring is established.

    :param deadline: loop time until which the server's HELLO may come.
    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    why = await _agree(loop, conn, setup, deadline)
    return await _ClientExchange(loop, tcp, setup, conn).run() if why is None else why


async def as_server(
    loop: asyncio.AbstractEventLoop, tcp: socket.socket, conn: socket.socket, setup: ServerSetup, deadline: float
) -> Fallback | None:
    """Go through the handshake with the client that was called on `conn` and has the HELLO; None when established.

    :param deadline: loop time until which the client may decide.
    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    decision = await rendezvous.last_frame(loop, conn, deadline)
    if decision is None:
        return reason("discovery_timeout")
    frame, fds = decision
    if not frame:
        return reason("peer_stopped")
    stopped = setup.go(frame, fds, rendezvous.pidfd(conn), loop.time())
    return await _ServerExchange(loop, tcp, setup, conn).run() if stopped is None else explained(*stopped)


async def as_assuming_client(
    loop: asyncio.AbstractEventLoop, tcp: socket.socket, door: Door, setup: ClientSetup
) -> Fallback | None:
    """Propose without any discovery; the server, if it is one, calls at `door` for the memory.

    :raises SmcHandshakeError: the peer does not speak CLC, or broke off.
    """
    exchange = _AssumingClientExchange(loop, tcp, setup, door)
    try:
        return await exchange.run()
    finally:
        exchange.close()


async def as_assumed_server(
    loop: asyncio.AbstractEventLoop, tcp: socket.socket, setup: ServerSetup, caller: AssumedCaller
) -> Fallback | None:
    """Answer the Proposal that the stream begins with; `caller` finds its client's door.

    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    exchange = _AssumedServerExchange(loop, tcp, setup, caller)
    try:
        return await exchange.run()
    finally:
        exchange.close()


class AssumedCaller(Protocol):
    """Finds the rendezvous connection of a client by the engine that its Proposal names."""

    def call(self, engine: bytes, /) -> socket.socket | None:
        """The connection, None when there is none that may be trusted."""


async def _agree(
    loop: asyncio.AbstractEventLoop, conn: socket.socket, setup: ClientSetup, deadline: float
) -> Fallback | None:
    """HELLO and GO: after None the server's queue has the GO, and from then on TCP carries CLC."""
    hello = await rendezvous.next_frame(loop, conn, deadline)
    if hello is None:
        return reason("discovery_timeout")
    frame, fds = hello
    rendezvous.close_fds(fds)
    if not frame:
        return reason("peer_stopped")
    stop = setup.hello(frame)
    if stop is not None:
        rendezvous.send_frame(conn, stop)
        return explained(*(setup.reason() or ("protocol", "")))
    return None if rendezvous.send_frame(conn, *setup.go()) else reason("peer_stopped")


class _Exchange:
    """One CLC exchange over TCP; what goes over the rendezvous connection beside it is the subclasses' part."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tcp: socket.socket, machine: Machine) -> None:
        self._loop = loop
        self._tcp = tcp
        self._machine = machine

    async def run(self) -> Fallback | None:
        while True:
            self._before_sending()
            await self._send(self._machine.transmit())
            outcome = self._machine.outcome()
            if outcome is not None:
                return _judge(*outcome)
            await self._step()

    def _before_sending(self) -> None:
        """What must be on its way before the next bytes on TCP are."""

    async def _step(self) -> None:
        """Wait for what comes next; one thing at a time."""
        await self._receive()

    async def _send(self, data: bytes) -> None:
        if not data:
            return
        try:
            sent = self._try_send(data)
            if sent < len(data):
                await self._loop.sock_sendall(self._tcp, data[sent:])
        except OSError:
            self._machine.receive(b"", self._loop.time())

    def _try_send(self, data: bytes) -> int:
        try:
            return self._tcp.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0

    async def _receive(self, *others: socket.socket) -> None:
        """Take from TCP what the machine wants; return early when one of `others` has something."""
        wanted = self._machine.wanted()
        if not wanted:
            raise RuntimeError("the set-up machine wants nothing and has no outcome")
        try:
            data = self._tcp.recv(wanted)
        except (BlockingIOError, InterruptedError):
            if not await rendezvous.readable(self._loop, (self._tcp, *others), self._machine.deadline()):
                self._machine.timeout(self._loop.time())
            return
        except OSError:
            data = b""
        self._machine.receive(data, self._loop.time())


class _ClientExchange(_Exchange):
    def __init__(
        self, loop: asyncio.AbstractEventLoop, tcp: socket.socket, setup: ClientSetup, conn: socket.socket | None
    ) -> None:
        super().__init__(loop, tcp, setup)
        self._setup = setup
        self._conn = conn

    async def _step(self) -> None:
        if self._setup.wants_memory():
            await self._take_memory()
        else:
            await self._receive()

    async def _take_memory(self) -> None:
        """The MEMORY frame was sent before the Accept that has just come."""
        packet: tuple[bytes, list[int]] | None = (b"", [])
        if self._conn is not None:
            packet = await rendezvous.next_frame(self._loop, self._conn, self._setup.deadline())
        if packet is None:
            self._setup.timeout(self._loop.time())
        elif self._conn is None or not packet[0]:
            self._setup.decline(DECLINED_NO_DEVICE)
        else:
            self._setup.memory(*packet, rendezvous.pidfd(self._conn))


class _ServerExchange(_Exchange):
    def __init__(
        self, loop: asyncio.AbstractEventLoop, tcp: socket.socket, setup: ServerSetup, conn: socket.socket | None
    ) -> None:
        super().__init__(loop, tcp, setup)
        self._setup = setup
        self._conn = conn

    def _before_sending(self) -> None:
        memory = self._setup.memory()
        if memory is not None and (self._conn is None or not rendezvous.send_frame(self._conn, *memory)):
            self._setup.decline(DECLINED_NO_DEVICE, self._loop.time())


class _AssumingClientExchange(_ClientExchange):
    """Proposes first; the server's call comes between Proposal and Accept."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tcp: socket.socket, setup: ClientSetup, door: Door) -> None:
        super().__init__(loop, tcp, setup, None)
        self._door = door

    async def _step(self) -> None:
        if self._conn is not None:
            await super()._step()
            return
        self._conn = self._door.caller()
        if self._conn is not None:
            # Whatever comes of it, the server's answer on TCP says what the connection is.
            await _agree(self._loop, self._conn, self._setup, self._setup.deadline())
        elif self._setup.wants_memory():
            await self._take_memory()
        else:
            await self._receive(*self._door.watched)

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()


class _AssumedServerExchange(_ServerExchange):
    """Answers a Proposal that came without a rendezvous connection: makes one to the engine that it names."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tcp: socket.socket, setup: ServerSetup, caller: AssumedCaller
    ) -> None:
        super().__init__(loop, tcp, setup, None)
        self._caller = caller

    async def _step(self) -> None:
        if not self._setup.wants_go():
            await self._receive()
            return
        engine = self._setup.peer_engine()
        self._conn = None if engine is None else self._caller.call(engine)
        if self._conn is None or not rendezvous.send_frame(self._conn, self._setup.hello()):
            self._setup.decline(DECLINED_NO_DEVICE, self._loop.time())
            return
        packet = await rendezvous.next_frame(self._loop, self._conn, self._setup.deadline())
        if packet is None:
            self._setup.timeout(self._loop.time())
        elif not packet[0]:
            self._setup.decline(DECLINED_NO_DEVICE, self._loop.time())
        elif self._setup.go(*packet, rendezvous.pidfd(self._conn), self._loop.time()) is not None:
            self._setup.decline(DECLINED_VERSION, self._loop.time())

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()


def _judge(outcome: str, code: int, text: str) -> Fallback | None:
    if outcome == "established":
        return None
    if outcome == "declined":
        return diagnosis(code, text)
    raise SmcHandshakeError(explained("handshake_failed", text))
