"""Clients and servers whose set-up is the core's own, but whose two connections end in the hands of the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from time import monotonic
from typing import TYPE_CHECKING

from smcfast import SmcConfig, negotiate, rendezvous
from smcfast.discovery import Invitation
from smcfast.negotiate import Clock
from support import frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

PATIENCE = 10.0


class Steered:
    """What it has to say comes out of `says` and `go`, and nothing reaches a server but by the test."""

    def __init__(self, stack: contextlib.ExitStack, config: SmcConfig) -> None:
        near, self._tcp = (stack.enter_context(sock) for sock in socket.socketpair())
        self._tcp.setblocking(False)
        self.setup = negotiate.client_setup(Clock.start(config), near, config)
        stack.callback(self.setup.release)

    def step(self) -> None:
        """Let it do what it can."""
        self.setup.step(monotonic())

    def meet(self, stack: contextlib.ExitStack, hello: bytes) -> tuple[bytes, Sequence[int]]:
        """Its answer to the server's HELLO: a GO, and the descriptors, which are closed at the end."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        stack.enter_context(far)
        far.send(hello)
        self.setup.meet(near.detach(), monotonic() + PATIENCE)
        self.step()
        packet = rendezvous.take_frame(far)
        assert packet is not None
        stack.callback(rendezvous.close_fds, packet[1])
        return packet

    def says(self) -> bytes:
        """What it sends on TCP now."""
        self.step()
        try:
            return self._tcp.recv(4096)
        except BlockingIOError:
            return b""

    async def answer(self, tcp: socket.socket) -> tuple[str, int, str]:
        """Let it talk with the server behind `tcp`, and hear how that ends."""
        loop = asyncio.get_running_loop()
        while (outcome := self.setup.outcome()) is None:
            await loop.sock_sendall(tcp, self.says())
            self._tcp.send(await loop.sock_recv(tcp, 4096))
            self.step()
        return outcome


@contextlib.contextmanager
def steered(config: SmcConfig | None = None) -> Iterator[Steered]:
    """A client that has not said anything yet."""
    with contextlib.ExitStack() as stack:
        yield Steered(stack, config or SmcConfig())


class SteeredServer:
    """The same for a server."""

    def __init__(self, stack: contextlib.ExitStack, config: SmcConfig) -> None:
        near, self._tcp = (stack.enter_context(sock) for sock in socket.socketpair())
        self._tcp.setblocking(False)
        self._stack = stack
        self.setup = negotiate.server_setup(Clock.start(config), near, config)
        stack.callback(self.setup.release)

    def hello(self) -> bytes:
        """Its HELLO; from now on it waits for the GO."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._stack.enter_context(far)
        assert self.setup.meet(near.detach(), monotonic() + PATIENCE)
        return far.recv(4096)

    def hears(self, data: bytes) -> None:
        """Give it bytes of TCP."""
        self._tcp.send(data)
        self.setup.step(monotonic())

    def says(self) -> bytes:
        """What it sends on TCP now."""
        self.setup.step(monotonic())
        try:
            return self._tcp.recv(4096)
        except BlockingIOError:
            return b""


@contextlib.contextmanager
def steered_server(config: SmcConfig | None = None) -> Iterator[SteeredServer]:
    """A server that has not heard anything yet."""
    with contextlib.ExitStack() as stack:
        yield SteeredServer(stack, config or SmcConfig())


class Greeted:
    """A client that has the HELLO of a real server, and its GO ready."""

    def __init__(
        self, tcp: socket.socket, conn: socket.socket, client: Steered, go: tuple[bytes, Sequence[int]]
    ) -> None:
        self.tcp = tcp
        self.conn = conn
        self.client = client
        self.go = go

    async def answer(self) -> tuple[str, int, str]:
        """Propose, and hear how that ends."""
        return await self.client.answer(self.tcp)

    async def echoes(self) -> bool:
        """Is the stream a clean one of TCP?"""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.tcp, b"hello")
        return await loop.sock_recv(self.tcp, 100) == b"hello"


@contextlib.asynccontextmanager
async def greeted(target: tuple[str, int]) -> AsyncIterator[Greeted]:
    """Connect to the server at `target` and let it call."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.socket())
        tcp.setblocking(False)
        with contextlib.closing(Invitation(tcp, target, SmcConfig())) as invitation:
            await loop.sock_connect(tcp, target)
            conn = await invitation.answer(tcp, monotonic() + PATIENCE)
        assert isinstance(conn, socket.socket)
        stack.enter_context(conn)
        hello = await frames.next_frame(loop, conn, monotonic() + PATIENCE)
        assert hello is not None
        client = stack.enter_context(steered())
        yield Greeted(tcp, conn, client, client.meet(stack, hello[0]))
