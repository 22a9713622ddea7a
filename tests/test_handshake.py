"""Faults in the middle of a handshake, each at its own moment: both ends come to one answer, in time, and say why."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import smcfast
from smcfast import SmcConfig, _core, acceptor, handshake, negotiate, netlink, remembered, rendezvous
from smcfast.discovery import Invitation
from smcfast.negotiate import CLIENT_SHARE, Clock
from support.loops import run_on
from support.process import abstract_names, descriptors, descriptors_left

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

HASTY = SmcConfig(handshake_timeout=0.4)
ONLY = SmcConfig(assume=("*:*",), discovery=())
OUT_OF_MEMORY, NO_DEVICE, VERSION, INTERNAL = 0x0101_0000, 0x0303_0007, 0x030C_0000, 0x0999_0000
MEMORY = 4
"""The kind of that frame."""


@pytest.fixture(autouse=True)
def nothing_is_left(loop_kind: str) -> Iterator[None]:
    remembered.listeners._until.clear()
    remembered.destinations._until.clear()
    run_on(loop_kind, asyncio.sleep, 0)  # uvloop's pipe for signals stays
    netlink.listener_of(netlink.destination(("127.0.0.1", 1)))  # and so does this thread's netlink socket
    gc.collect()  # a loop and its engine are in a cycle
    before = descriptors()
    yield
    gc.collect()
    assert descriptors() == before
    assert abstract_names() == set()


class Echo:
    """A server that echoes, and the reasons of its streams."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []
        self.target: tuple[str, int] = ("", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reasons.append(writer.get_extra_info("smc").reason)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                writer.write(data)
        writer.close()


@contextlib.asynccontextmanager
async def echoing(config: SmcConfig = HASTY) -> AsyncIterator[Echo]:
    echo = Echo()
    server = await smcfast.start_smc_server(echo.serve, "127.0.0.1", 0, config=config)
    echo.target = server.sockets[0].getsockname()
    try:
        yield echo
    finally:
        server.close()
        server.close_clients()
        await server.wait_closed()


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, str | None]:
    """Say something, hear it again, hang up: the path, and the reason."""
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()
    info = writer.get_extra_info("smc")
    return info.path, info.reason


class Greeted(NamedTuple):
    """A client in the hand of the test: it has the server's HELLO."""

    tcp: socket.socket
    conn: socket.socket
    setup: _core.ClientSetup

    async def answer(self) -> tuple[str, int, str]:
        """Propose, and hear how that ends."""
        loop = asyncio.get_running_loop()
        while (outcome := self.setup.outcome()) is None:
            await loop.sock_sendall(self.tcp, self.setup.transmit())
            self.setup.receive(await loop.sock_recv(self.tcp, self.setup.wanted()), loop.time())
        return outcome

    async def echoes(self) -> bool:
        """Is the stream a clean one of TCP?"""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.tcp, b"hello")
        return await loop.sock_recv(self.tcp, 100) == b"hello"


@contextlib.asynccontextmanager
async def greeted(target: tuple[str, int]) -> AsyncIterator[Greeted]:
    loop = asyncio.get_running_loop()
    with socket.socket() as tcp:
        tcp.setblocking(False)
        with contextlib.closing(Invitation(tcp, target, SmcConfig())) as invitation:
            await loop.sock_connect(tcp, target)
            conn = await invitation.answer(loop, tcp, loop.time() + 5)
        assert isinstance(conn, socket.socket)
        with conn:
            hello = await rendezvous.next_frame(loop, conn, loop.time() + 5)
            setup = negotiate.client_setup(Clock.start(loop, SmcConfig()), SmcConfig())
            assert hello is not None
            assert setup.hello(hello[0]) is None
            yield Greeted(tcp, conn, setup)


@pytest.mark.parametrize("left", [0, 1])
async def test_a_go_that_finds_no_descriptor(left: int) -> None:
    """The client's Proposal is on its way, so it has to be read and declined."""
    async with echoing() as echo, greeted(echo.target) as client:
        with descriptors_left(left):
            assert rendezvous.send_frame(client.conn, *client.setup.go())
            assert (await client.answer())[:2] == ("declined", OUT_OF_MEMORY)
        assert await client.echoes()
        assert echo.reasons == ["out_of_memory"]


def another_version(frame: bytes) -> bytes:
    return frame[:8] + b"\2" + frame[9:]


BROKEN: dict[str, tuple[Callable[[bytes], bytes], int, int]] = {
    "too many descriptors": (lambda frame: frame, 5, INTERNAL),
    "no descriptors": (lambda frame: frame, 0, INTERNAL),
    "too long": (lambda frame: frame + bytes(5000), 2, INTERNAL),
    "nonsense": (lambda _: b"nonsense", 2, INTERNAL),
    "another version": (another_version, 2, VERSION),
    "another layout": (lambda frame: frame[:16] + bytes(8) + frame[24:], 2, VERSION),
    "a HELLO": (lambda frame: frame[:10] + b"\1\0" + (40).to_bytes(4, "little") + frame[16:40], 0, INTERNAL),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_broken_go(how: str) -> None:
    """Only a STOP and an end say that no Proposal follows."""
    change, count, code = BROKEN[how]
    async with echoing() as echo, greeted(echo.target) as client:
        frame, fds = client.setup.go()
        assert rendezvous.send_frame(client.conn, change(frame), (fds * 3)[:count])
        assert (await client.answer())[:2] == ("declined", code)
        assert await client.echoes()
        assert echo.reasons == ["version_mismatch" if code == VERSION else "internal_error"]


async def test_a_client_that_hangs_up_the_rendezvous_too_early() -> None:
    """The server finds out when it sends its MEMORY, and can still decline."""
    async with echoing() as echo, greeted(echo.target) as client:
        assert rendezvous.send_frame(client.conn, *client.setup.go())
        client.conn.close()
        assert (await client.answer())[:2] == ("declined", NO_DEVICE)
        assert await client.echoes()
        assert echo.reasons == ["no_smc_d_v2_device"]


@pytest.mark.parametrize("config", [SmcConfig(), ONLY], ids=["discovered", "assumed"])
@pytest.mark.parametrize("error", [errno.ETOOMANYREFS, errno.EAGAIN, errno.EPIPE])
async def test_a_memory_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch, error: int, config: SmcConfig) -> None:
    """Both are TCP at once, on one connection."""
    send = rendezvous.send

    def refuse(conn: socket.socket, frame: bytes, fds: Any = ()) -> None:
        if frame[10] == MEMORY:
            raise OSError(error, os.strerror(error))
        send(conn, frame, fds)

    monkeypatch.setattr(rendezvous, "send", refuse)
    expected = "out_of_memory" if error == errno.ETOOMANYREFS else "no_smc_d_v2_device"
    async with echoing(config) as echo:
        async with asyncio.timeout(CLIENT_SHARE * config.handshake_timeout):
            assert await talk(*await smcfast.open_smc_connection(*echo.target, config=config)) == ("tcp", expected)
        assert echo.reasons == [expected]


@pytest.mark.parametrize("config", [SmcConfig(), ONLY], ids=["discovered", "assumed"])
async def test_a_late_client_says_nothing_more(monkeypatch: pytest.MonkeyPatch, config: SmcConfig) -> None:
    """Its loop was busy until its time was over: it must not confirm what the server has given up by now."""
    step = handshake._ClientExchange._take_memory

    async def busy(self: Any) -> None:
        time.sleep(CLIENT_SHARE * hasty.handshake_timeout)  # noqa: ASYNC251 - that is what happens
        await step(self)

    monkeypatch.setattr(handshake._ClientExchange, "_take_memory", busy)
    hasty = SmcConfig(handshake_timeout=0.2, assume=config.assume, discovery=config.discovery)
    async with echoing(config) as echo:
        assert await talk(*await smcfast.open_smc_connection(*echo.target, config=hasty)) == ("tcp", "handshake_failed")
        # All that the server saw of the first connection is its end.
        assert echo.reasons == ["disabled" if config is ONLY else "peer_plain"]


async def test_a_client_that_is_late_before_its_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the stream is clean, and stays."""
    monkeypatch.setattr(Clock, "is_late", lambda _: True)
    async with echoing() as echo:
        assert await talk(*await smcfast.open_smc_connection(*echo.target)) == ("tcp", "discovery_timeout")
        assert echo.reasons == ["peer_stopped"]


async def test_the_client_has_less_time_than_the_server() -> None:
    loop = asyncio.get_running_loop()
    clock = Clock.start(loop, SmcConfig(handshake_timeout=80))
    assert negotiate.client_setup(clock, SmcConfig()).deadline() == pytest.approx(clock.started + 70, abs=1e-6)
    assert negotiate.server_setup(clock, SmcConfig()).deadline() == pytest.approx(clock.started + 80, abs=1e-6)


async def serve_in_child(parent: Channel, assumes: bool) -> list[Any]:
    """Child: serve until the parent has enough, and return the reasons."""
    async with echoing(ONLY if assumes else SmcConfig()) as echo:
        parent.send(echo.target)
        assert await parent.areceive() == "enough"
        return echo.reasons


@pytest.mark.parametrize(
    ("assumes", "left", "at_client", "at_server"),
    [
        (True, 4, "resources", "no_smc_d_v2_device"),  # TCP, memory, bell and door: the server cannot be let in
        (True, 5, "out_of_memory", "out_of_memory"),  # it can, but not its memory
        (False, 5, "out_of_memory", "out_of_memory"),
    ],
)
async def test_a_client_without_descriptors(
    spawn: Spawn, loop_kind: str, assumes: bool, left: int, at_client: str, at_server: str
) -> None:
    child = spawn(serve_in_child, assumes, loop=loop_kind)
    target = await child.areceive()
    config = ONLY if assumes else SmcConfig()
    from smcfast import _loop

    _loop.engine()  # takes descriptors of its own
    used = time.process_time()
    with descriptors_left(left):
        pair = await smcfast.open_smc_connection(*target, config=config)
    assert await talk(*pair) == ("tcp", at_client)
    assert time.process_time() - used < 1  # it has not spun until the end of its time
    child.send("enough")
    assert await child.aresult() == [at_server]


async def test_an_assumed_server_without_descriptors() -> None:
    """It cannot call at the client's door."""
    async with echoing(ONLY) as echo:
        loop = asyncio.get_running_loop()
        with socket.socket() as tcp:
            tcp.setblocking(False)
            await loop.sock_connect(tcp, echo.target)
            client = Greeted(tcp, tcp, negotiate.client_setup(Clock.start(loop, ONLY), ONLY))
            await asyncio.sleep(0.01)  # until it is accepted, which takes a descriptor too
            with descriptors_left(0):
                assert (await client.answer())[:2] == ("declined", OUT_OF_MEMORY)
            assert await client.echoes()
        assert echo.reasons == ["out_of_memory"]


async def serve_without_descriptors(parent: Channel) -> None:
    """Child: serve, and be without descriptors while the parent connects twice."""
    acceptor.RETRY_DELAY = 0.05  # type: ignore[misc]
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # accept says that descriptors have run out
    async with echoing(SmcConfig()) as echo:
        parent.send(echo.target)
        assert await parent.areceive() == "now"
        with descriptors_left(1):  # for the connection that is accepted
            parent.send("ready")
            assert await parent.areceive() == "enough"
        parent.send(echo.reasons)
        assert await parent.areceive() == "end"


async def test_a_server_without_descriptors_says_so(spawn: Spawn, loop_kind: str) -> None:
    """A moment's lack must not make the client take the listener for a plain one."""
    child = spawn(serve_without_descriptors, loop=loop_kind)
    target = await child.areceive()
    assert await talk(*await smcfast.open_smc_connection(*target)) == ("smc-d", None)
    child.send("now")
    assert await child.areceive() == "ready"
    for _ in range(2):
        assert await talk(*await smcfast.open_smc_connection(*target)) == ("tcp", "peer_stopped")
    child.send("enough")
    assert await child.areceive() == [None, "resources", "resources"]
    assert await talk(*await smcfast.open_smc_connection(*target)) == ("smc-d", None)
    child.send("end")
    await child.aresult()


@pytest.mark.parametrize(("policy", "level"), [("allow", "INFO"), ("warn", "WARNING"), ("forbid", "WARNING")])
async def test_a_handshake_that_breaks_off_at_the_server(
    caplog: pytest.LogCaptureFixture, policy: Any, level: str
) -> None:
    """No stream comes of it, and all the same it is counted and logged as the configuration wants it."""
    before = smcfast.stats()
    with caplog.at_level("INFO", "smcfast"):
        async with echoing(SmcConfig(fallback=policy)) as echo, greeted(echo.target) as client:
            assert rendezvous.send_frame(client.conn, *client.setup.go())
            client.tcp.shutdown(socket.SHUT_WR)
            assert await asyncio.get_running_loop().sock_recv(client.tcp, 1) == b""
    after = smcfast.stats()
    assert after["failed"] == before["failed"] + 1
    assert after["fallbacks"]["handshake_failed"] == before["fallbacks"]["handshake_failed"] + 1
    assert after["connections"] == before["connections"]
    assert [record.levelname for record in caplog.records if "is closed" in record.message] == [level]
