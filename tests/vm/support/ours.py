"""Streams of smcfast in the test's own process, with SMC sockets of the kernel at their other end, or streams of another process;
whichever end connects."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import smcfast
from support.patience import PATIENCE
from vm.support.hosts import A, B
from vm.support.peers import KernelPeer, SmcfastPeer
from vm.support.smc import Mode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from vm.support.hosts import Host
    from vm.support.peers import Peer
    from vm.support.smc import Connection

EID: Final = "SMCFAST"
"""The user EID that both sides have, unless a test takes it away."""
HANDSHAKE_TIMEOUT: Final = 20.0 * PATIENCE
"""Seconds that a handshake may take where each instruction is emulated and many of them are under way."""
CONFIG: Final = smcfast.SmcConfig(
    paths=("smc-r",), discovery=("option",), ueids=(EID,), handshake_timeout=HANDSHAKE_TIMEOUT
)
"""SMC-R alone, by the TCP option: what a kernel understands."""
Role = Literal["client", "server"]
"""Which end is the test's."""
ROLES: Final[tuple[Role, ...]] = ("client", "server")


@dataclass
class Pair:
    """A connection."""

    reader: smcfast.SmcStreamReader
    writer: smcfast.SmcStreamWriter
    peer: Peer
    sock: int
    """The peer's end, a number of `peer`."""

    @property
    def kernel(self) -> KernelPeer:
        """The peer, which is the kernel."""
        assert isinstance(self.peer, KernelPeer)
        return self.peer

    @property
    def info(self) -> smcfast.SmcInfo:
        """What smcfast says of it."""
        found: smcfast.SmcInfo = self.writer.get_extra_info("smc")
        return found

    async def about(self) -> Connection:
        """What the kernel says of it."""
        return await self.kernel.about(self.sock)

    async def assert_smc_r(self) -> None:
        """Both ends say that it is SMC-R, a kernel by netlink."""
        assert self.info.path == "smc-r", self.info
        if isinstance(self.peer, SmcfastPeer):
            assert await self.peer.path(self.sock) == "smc-r"
        else:
            assert (found := await self.about()).mode is Mode.SMC_R, found

    async def assert_tcp(self, reason: int) -> Connection:
        """Both ends say that it is TCP, smcfast for the reason with this code; what the kernel says of it."""
        assert self.info.path == "tcp", self.info
        assert self.info.fallback is not None
        assert hex(self.info.fallback.code) == hex(reason), self.info.fallback
        found = await self.about()
        assert found.mode is Mode.TCP, found
        return found

    async def close(self) -> None:
        """Close smcfast's end."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Meeting:
    """Listens at one end, for any number of connections from the other."""

    def __init__(
        self,
        role: Role,
        peer: Peer,
        config: smcfast.SmcConfig,
        family: socket.AddressFamily,
        hosts: tuple[Host, Host],
    ) -> None:
        self.role = role
        self.peer = peer
        self._near, self._far = (host.at(family) for host in hosts)
        self.config = config
        self.port = 0
        self.listener = 0
        """The peer's, a number of `peer`."""
        self._accepted: asyncio.Queue[tuple[smcfast.SmcStreamReader, smcfast.SmcStreamWriter]] = asyncio.Queue()
        self._server: smcfast.SmcServer | None = None

    async def open(self) -> None:
        """Begin to listen."""
        if self.role == "client":
            self.listener, self.port = await self.peer.listen(self._far)
        else:
            self._server = await smcfast.start_smc_server(self._accept, self._far, 0, config=self.config)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: smcfast.SmcStreamReader, writer: smcfast.SmcStreamWriter) -> None:
        await self._accepted.put((reader, writer))

    async def connect(self) -> Pair:
        """One connection more."""
        if self.role == "client":
            accepting = self.peer.start("accept", self.listener)
            reader, writer = await self.dial()
            return Pair(reader, writer, self.peer, await self.peer.finish(accepting))
        connecting = self.call()
        reader, writer = await self.accept()
        return Pair(reader, writer, self.peer, await self.peer.finish(connecting))

    async def dial(self) -> tuple[smcfast.SmcStreamReader, smcfast.SmcStreamWriter]:
        """Our end of a connection to the peer, which has to accept it."""
        local = (self._near, 0)
        return await smcfast.open_smc_connection(self._far, self.port, local_addr=local, config=self.config)

    def call(self) -> int:
        """Let the peer connect; a ticket for its number of the connection, which `accept` takes."""
        return self.peer.start("connect", self._far, self.port, self._near)

    async def accept(self) -> tuple[smcfast.SmcStreamReader, smcfast.SmcStreamWriter]:
        """Our end of the next connection of the peer."""
        return await self._accepted.get()

    async def close(self) -> None:
        """Listen no more; connections that are open stay."""
        if self._server is not None:
            self._server.close()


def config_for(peer: Peer, **settings: object) -> smcfast.SmcConfig:
    """`CONFIG` for connections with `peer`, with these settings changed: two smcfast need no option, which costs a program of BPF."""
    assumed = {"discovery": (), "assume": ("*:*",)} if isinstance(peer, SmcfastPeer) else {}
    return dataclasses.replace(CONFIG, **assumed, **settings)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def meeting(
    role: Role,
    peer: Peer,
    config: smcfast.SmcConfig | None = None,
    family: socket.AddressFamily = socket.AF_INET,
    hosts: tuple[Host, Host] | None = None,
) -> AsyncIterator[Meeting]:
    """A listener at the end that is not `role`'s client; smcfast is at host a, if nothing else is said of both hosts.

    :param hosts: the client's and the server's.
    """
    hosts = hosts or ((A, B) if role == "client" else (B, A))
    both = Meeting(role, peer, config or config_for(peer), family, hosts)
    await both.open()
    try:
        yield both
    finally:
        await both.close()


@contextlib.asynccontextmanager
async def connected(
    role: Role,
    peer: Peer,
    config: smcfast.SmcConfig | None = None,
    family: socket.AddressFamily = socket.AF_INET,
) -> AsyncIterator[Pair]:
    """One connection, closed at smcfast's end when the block is left."""
    async with meeting(role, peer, config, family) as both:
        pair = await both.connect()
        try:
            yield pair
        finally:
            await pair.close()
