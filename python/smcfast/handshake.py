"""Drives the core's set-up machines: CLC over TCP, memory over the rendezvous connection.

The machines do no I/O and have no clock; what is here gives them exactly the bytes they ask for, since application
bytes may follow a Decline at once. Whoever calls owns the TCP socket; the rendezvous connection is the caller's where
it is an argument.

The client has less time than the server, and a late one says nothing any more: no Confirm, no Decline. A server that is
late takes what has come all the same. So no server gives up on a client that believes in what it has sent.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

from smcfast import rendezvous
from smcfast.errors import Fallback, SmcHandshakeError
from smcfast.reasons import DECLINED_MEMORY, DECLINED_NO_DEVICE, DECLINED_VERSION, diagnosis, explained, reason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

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
    loop: asyncio.AbstractEventLoop,
    tcp: socket.socket,
    conn: socket.socket,
    setup: ClientSetup,
    deadline: float,
    is_late: Callable[[], bool],
) -> Fallback | None:
    """Go through the handshake with the server that called on `conn`; None when the ring is established.

    :param deadline: loop time until which the server's HELLO may come.
    :param is_late: is the client's time over by now? Loop time may stand still while a callback runs.
    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    why = await _agree(loop, conn, setup, deadline, is_late)
    return await _ClientExchange(loop, tcp, setup, conn, is_late).run() if why is None else why


async def as_server(
    loop: asyncio.AbstractEventLoop, tcp: socket.socket, conn: socket.socket, setup: ServerSetup, deadline: float
) -> Fallback | None:
    """Go through the handshake with the client that was called on `conn` and has the HELLO; None when established.

    :param deadline: loop time until which the client may decide.
    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    try:
        decision = await rendezvous.last_frame(loop, conn, deadline)
    except OSError:
        # A GO has come, and so will the Proposal.
        setup.decline(DECLINED_MEMORY, loop.time())
        return await _ServerExchange(loop, tcp, setup, conn).run()
    if decision is None:
        return reason("discovery_timeout")
    frame, fds = decision
    if not frame:
        return reason("peer_stopped")
    stopped = setup.go(frame, fds, rendezvous.pidfd(conn), loop.time())
    return await _ServerExchange(loop, tcp, setup, conn).run() if stopped is None else explained(*stopped)


async def as_assuming_client(
    loop: asyncio.AbstractEventLoop, tcp: socket.socket, door: Door, setup: ClientSetup, is_late: Callable[[], bool]
) -> Fallback | None:
    """Propose without any discovery; the server, if it is one, calls at `door` for the memory.

    :param is_late: as for `as_client`.
    :raises SmcHandshakeError: the peer does not speak CLC, or broke off.
    """
    exchange = _AssumingClientExchange(loop, tcp, setup, door, is_late)
    try:
        why = await exchange.run()
        # The door is closed where no descriptor was left to let the server in, which then declined.
        return why if why is None or door.watched else reason("resources")
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
        """The connection, None when there is none that may be trusted; OSError when none can be had here."""


async def _agree(
    loop: asyncio.AbstractEventLoop,
    conn: socket.socket,
    setup: ClientSetup,
    deadline: float,
    is_late: Callable[[], bool],
) -> Fallback | None:
    """HELLO and GO: after None the server's queue has the GO, and from then on TCP carries CLC."""
    try:
        hello = await rendezvous.next_frame(loop, conn, deadline)
    except OSError:
        return reason("resources")
    if hello is None or is_late():
        rendezvous.close_fds(hello[1] if hello is not None else ())
        return reason("discovery_timeout")
    frame, fds = hello
    rendezvous.close_fds(fds)
    if not frame:
        return reason("peer_stopped")
    stop = setup.hello(frame)
    if stop is not None:
        rendezvous.send_frame(conn, stop)
        return explained(*(setup.reason() or ("protocol", "")))
    try:
        rendezvous.send(conn, *setup.go())
    except OSError as error:
        return reason("peer_stopped" if _is_gone(error) else "resources")
    return None


def _is_gone(error: OSError) -> bool:
    """Does `error` tell of the other end, and not of something that is lacking here?"""
    return isinstance(error, (ConnectionError, BlockingIOError))


def _refusal(error: OSError) -> int:
    """The diagnosis for an `error` of the rendezvous connection."""
    return DECLINED_NO_DEVICE if _is_gone(error) else DECLINED_MEMORY


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
        if (data := self._try_receive(wanted)) is None:
            if await rendezvous.readable(self._loop, (self._tcp, *others), self._machine.deadline()):
                return
            # Whatever has come in the very turn of the loop in which the time was over counts.
            if (data := self._try_receive(wanted)) is None:
                self._time_is_up()
                return
        self._machine.receive(data, self._loop.time())

    def _try_receive(self, wanted: int) -> bytes | None:
        try:
            return self._tcp.recv(wanted)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""

    def _time_is_up(self) -> None:
        # A loop's timers may be a little early.
        self._machine.timeout(max(self._loop.time(), self._machine.deadline()))


class _ClientExchange(_Exchange):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tcp: socket.socket,
        setup: ClientSetup,
        conn: socket.socket | None,
        is_late: Callable[[], bool],
    ) -> None:
        super().__init__(loop, tcp, setup)
        self._setup = setup
        self._conn = conn
        self._is_late = is_late

    def _before_sending(self) -> None:
        # The last moment at which a Confirm can be taken back.
        if self._is_late():
            self._setup.give_up()

    async def _step(self) -> None:
        if self._setup.wants_memory():
            await self._take_memory()
        else:
            await self._receive()

    async def _take_memory(self) -> None:
        """The MEMORY frame was sent before the Accept that has just come."""
        packet: tuple[bytes, list[int]] | None = (b"", [])
        try:
            if self._conn is not None:
                packet = await rendezvous.next_frame(self._loop, self._conn, self._setup.deadline())
        except OSError:
            self._setup.decline(DECLINED_MEMORY)
            return
        if packet is None:
            self._time_is_up()
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
        """The Accept comes only behind a MEMORY that was sent."""
        memory = self._setup.memory()
        if memory is None or self._conn is None:
            return
        try:
            rendezvous.send(self._conn, *memory)
        except OSError as error:
            self._setup.decline(_refusal(error), self._loop.time())
        else:
            self._setup.memory_sent(self._loop.time())


class _AssumingClientExchange(_ClientExchange):
    """Proposes first; the server's call comes between Proposal and Accept."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tcp: socket.socket,
        setup: ClientSetup,
        door: Door,
        is_late: Callable[[], bool],
    ) -> None:
        super().__init__(loop, tcp, setup, None, is_late)
        self._door = door

    async def _step(self) -> None:
        if self._conn is not None:
            await super()._step()
            return
        self._conn = self._door.caller()
        if self._conn is not None:
            # Whatever comes of it, the server's answer on TCP says what the connection is.
            await _agree(self._loop, self._conn, self._setup, self._setup.deadline(), self._is_late)
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
        try:
            refusal = await self._ask()
        except OSError as error:
            refusal = _refusal(error)
        if refusal is not None:
            self._setup.decline(refusal, self._loop.time())

    async def _ask(self) -> int | None:
        """Get the client's GO: the diagnosis to decline with when there is none.

        :raises OSError: of the rendezvous connection.
        """
        engine = self._setup.peer_engine()
        self._conn = None if engine is None else self._caller.call(engine)
        if self._conn is None:
            return DECLINED_NO_DEVICE
        rendezvous.send(self._conn, self._setup.hello())
        packet = await rendezvous.next_frame(self._loop, self._conn, self._setup.deadline())
        if packet is None:
            self._time_is_up()
            return None
        if not packet[0]:
            return DECLINED_NO_DEVICE
        stopped = self._setup.go(*packet, rendezvous.pidfd(self._conn), self._loop.time())
        return DECLINED_VERSION if stopped is not None else None

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()


def _judge(outcome: str, code: int, text: str) -> Fallback | None:
    if outcome == "established":
        return None
    if outcome == "declined":
        return diagnosis(code, text)
    raise SmcHandshakeError(explained("handshake_failed", text))
