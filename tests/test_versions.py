"""Two builds whose private protocols differ: TCP with that reason, whichever of them is the client, however they meet.

The other build is played by hand, frame by frame, as it is written down in docs/private-protocols.md: what no two versions
may differ in is the head of a frame, and a Stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import smcfast
from smcfast import SmcConfig, _core, folder, netlink, remembered
from support.steered import steered, steered_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HEAD = struct.Struct("<8sHHIQ")
HELLO, STOP = 1, 3
VERSION_MISMATCH = 0x030C_0000
ASSUMING = SmcConfig(assume=("*:*",), discovery=())


def own_head() -> tuple[int, int]:
    """Version and layout hash of this build, as its own frames have them."""
    engine = _core.Engine(asyncio.Future, lambda *_: None, lambda _: None, lambda: None)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        _core.ServerSetup(engine, near.fileno(), 16384, 0.0, 1.0, False).meet(os.dup(near.fileno()), 1.0)
        _, version, _, _, layout = HEAD.unpack_from(far.recv(100))
    return version, layout


VERSION, LAYOUT = own_head()


class Build(NamedTuple):
    """Another build."""

    version: int
    layout: int
    longer: int = 0
    """Bytes that its frames have and ours have not."""

    def frame(self, kind: int, body: bytes) -> bytes:
        body += b"\1" * self.longer
        return HEAD.pack(b"smcfast\0", self.version, kind, HEAD.size + len(body), self.layout) + body

    def changed(self, frame: bytes) -> bytes:
        """A frame of ours with its head."""
        _, _, kind, _, _ = HEAD.unpack_from(frame)
        return self.frame(kind, frame[HEAD.size :])


BUILDS = {
    "next version": Build(VERSION + 1, LAYOUT + 1, longer=16),
    "old version": Build(VERSION - 1, LAYOUT),
    "other layout": Build(VERSION, LAYOUT ^ 1),
}
each_build = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    remembered.listeners._until.clear()
    remembered.destinations._until.clear()


@pytest.fixture(params=["cookies", "folder"])
def meeting(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Meeting:
    """How the two find each other."""
    if request.param == "cookies":
        return Meeting(None)
    monkeypatch.setattr(netlink, "listener_of", lambda _: None)  # else the look-up comes first
    monkeypatch.setattr(folder, "WAIT", 8.0)
    return Meeting(str(tmp_path))


class Meeting:
    """The names of listeners and clients, made by hand: in the abstract namespace, or in a directory."""

    def __init__(self, directory: str | None) -> None:
        self.config = SmcConfig(rendezvous_dir=directory)
        self._directory = directory

    def of_listener(self, listener: socket.socket) -> bytes:
        if self._directory is None:
            return b"\0smcfast/l/%x" % netlink.cookie(listener)
        host, port = listener.getsockname()
        return f"{self._directory}/smc-l4-{socket.inet_aton(host).hex()}-{port:x}-7".encode()

    def of_client(self, client: socket.socket | None, own: Any, peer: Any) -> bytes:
        if self._directory is None:
            found = netlink.look_up(netlink.address(own), netlink.address(peer))
            cookie = netlink.cookie(client) if client is not None else found and found.cookie
            return b"\0smcfast/c/%x" % (cookie or 0)
        ends = "-".join(f"{socket.inet_aton(host).hex()}-{port:x}" for host, port in (own, peer))
        return f"{self._directory}/smc-c4-{ends}".encode()


@contextlib.contextmanager
def bound(kind: int, name: bytes) -> Any:
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as sock:
        sock.bind(name)
        try:
            yield sock
        finally:
            if name[0]:
                os.unlink(name)


@contextlib.asynccontextmanager
async def echoing(config: SmcConfig) -> AsyncIterator[tuple[Any, list[smcfast.SmcInfo]]]:
    """A server of this build, and what its streams tell."""
    infos: list[smcfast.SmcInfo] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        infos.append(writer.get_extra_info("smc"))
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await smcfast.start_smc_server(echo, "127.0.0.1", 0, config=config)
    try:
        yield server.sockets[0].getsockname(), infos
    finally:
        server.close()
        server.close_clients()
        await server.wait_closed()


async def echoes(tcp: socket.socket) -> bool:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(tcp, b"hello")
    return await loop.sock_recv(tcp, 100) == b"hello"


async def finished(opening: asyncio.Task[Any], conn: socket.socket) -> smcfast.SmcInfo:
    """The client's stream carries what it should, and nothing else: what it tells."""
    loop = asyncio.get_running_loop()
    reader, writer = await opening
    writer.write(b"to you")
    assert await loop.sock_recv(conn, 100) == b"to you"
    await loop.sock_sendall(conn, b"and back")
    assert await reader.readexactly(8) == b"and back"
    writer.close()
    await writer.wait_closed()
    info: smcfast.SmcInfo = writer.get_extra_info("smc")
    return info


@each_build
async def test_a_server_of_another_build(build: Build, meeting: Meeting) -> None:
    """Our client reads the head of its HELLO, says STOP, and goes on with TCP on the same connection."""
    loop = asyncio.get_running_loop()
    before = smcfast.stats()["fallbacks"]["version"]
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        bound(socket.SOCK_DGRAM, meeting.of_listener(listener)),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as call,
    ):
        listener.setblocking(False)
        opening = asyncio.ensure_future(smcfast.open_smc_connection(*listener.getsockname(), config=meeting.config))
        tcp, _ = await loop.sock_accept(listener)
        with tcp:
            call.connect(meeting.of_client(None, tcp.getpeername(), tcp.getsockname()))
            call.setblocking(False)
            call.send(build.frame(HELLO, bytes(16)))
            stop = await loop.sock_recv(call, 100)
            assert HEAD.unpack_from(stop)[:3] == (b"smcfast\0", VERSION, STOP)
            info = await finished(opening, tcp)
    assert (info.path, info.reason) == ("tcp", "version")
    assert smcfast.stats()["fallbacks"]["version"] == before + 1
    assert not remembered.listeners._until  # who says what he speaks has not cost a wait


@each_build
async def test_a_client_of_another_build(build: Build, meeting: Meeting) -> None:
    """It reads the head of our HELLO and says STOP, in its own version; our server goes on with TCP."""
    loop = asyncio.get_running_loop()
    before = smcfast.stats()["fallbacks"]["version"]
    async with echoing(meeting.config) as (target, infos):
        with socket.socket() as tcp:
            tcp.setblocking(False)
            tcp.bind(("127.0.0.1", 0))
            with bound(socket.SOCK_SEQPACKET, meeting.of_client(tcp, tcp.getsockname(), target)) as door:
                door.listen(1)
                await loop.sock_connect(tcp, target)
                call, _ = await loop.sock_accept(door)
                with call:
                    hello = await loop.sock_recv(call, 4096)
                    assert HEAD.unpack_from(hello) == (b"smcfast\0", VERSION, HELLO, len(hello), LAYOUT)
                    call.send(build.frame(STOP, struct.pack("<II", 1, 0)))
                assert await echoes(tcp)
        assert [(info.path, info.reason) for info in infos] == [("tcp", "version")]
    assert smcfast.stats()["fallbacks"]["version"] == before + 1


@each_build
async def test_an_assumed_server_of_another_build(build: Build) -> None:
    """The Proposal is on its way, so it is the Decline that says it; the connection is the same."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        opening = asyncio.ensure_future(smcfast.open_smc_connection(*listener.getsockname(), config=ASSUMING))
        tcp, _ = await loop.sock_accept(listener)
        with tcp, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as call:
            with steered_server() as server, steered_server() as another:
                while (engine := server.setup.wants_meeting()) is None:
                    server.hears(await loop.sock_recv(tcp, 4096))
                call.connect(b"\0smcfast/a/%s/%d" % (engine.hex().encode(), tcp.getpeername()[1]))
                call.setblocking(False)
                call.send(build.changed(another.hello()))
                assert HEAD.unpack_from(await loop.sock_recv(call, 100))[1:3] == (VERSION, STOP)
                server.setup.decline(VERSION_MISMATCH, monotonic())
                await loop.sock_sendall(tcp, server.says())
            info = await finished(opening, tcp)
    assert (info.path, info.reason) == ("tcp", "version_mismatch")


@each_build
async def test_an_assumed_client_of_another_build(build: Build) -> None:
    loop = asyncio.get_running_loop()
    async with echoing(ASSUMING) as (target, infos):
        with socket.socket() as tcp:
            tcp.setblocking(False)
            await loop.sock_connect(tcp, target)
            from smcfast import _loop

            name = b"\0smcfast/a/%s/%d" % (_loop.engine().core.id.hex().encode(), tcp.getsockname()[1])
            with bound(socket.SOCK_SEQPACKET, name) as door, contextlib.ExitStack() as stack:
                client = stack.enter_context(steered())
                door.listen(1)
                await loop.sock_sendall(tcp, client.says())
                call, _ = await loop.sock_accept(door)
                with call:
                    frame, fds = client.meet(stack, await loop.sock_recv(call, 100))
                    socket.send_fds(call, [build.changed(frame)], list(fds))
                    outcome = await client.answer(tcp)
            assert outcome[:2] == ("declined", VERSION_MISMATCH)
            assert await echoes(tcp)
        assert [(info.path, info.reason) for info in infos] == [("tcp", "version_mismatch")]
