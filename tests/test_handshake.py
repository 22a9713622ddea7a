"""Faults in the middle of a handshake, each at its own moment: both ends come to one answer, in time, and say why."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, SmcHandshakeError, acceptor, handshake, negotiate, remembered
from smcfast._loop import LoopEngine
from smcfast.negotiate import Clock
from support import frames
from support.echo import talk
from support.process import descriptors_left
from support.steered import greeted, steered
from support.streams import eventually, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from smcfast import _core
    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

HASTY = SmcConfig(handshake_timeout=0.4)
ONLY = SmcConfig(assume=("*:*",), discovery=())
HASTY_ONLY = SmcConfig(assume=("*:*",), discovery=(), handshake_timeout=0.4)
OUT_OF_MEMORY, NO_DEVICE, VERSION, INTERNAL = 0x0101_0000, 0x0303_0007, 0x030C_0000, 0x0999_0000


pytestmark = pytest.mark.usefixtures("nothing_is_left")


class Echo:
    """A server that echoes, and the reasons of its streams."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []
        self.target: tuple[str, int] = ("", 0)
        self.served = 0
        """Connections that it has served to their end."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reasons.append(writer.get_extra_info("smc").reason)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                writer.write(data)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.served += 1


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


@pytest.mark.parametrize("left", [0, 1])
async def test_a_go_that_finds_no_descriptor(left: int) -> None:
    """The client's Proposal is on its way, so it has to be read and declined."""
    async with echoing() as echo, greeted(echo.target) as client:
        with descriptors_left(left):
            assert frames.send_frame(client.conn, *client.go)
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
        frame, fds = client.go
        assert frames.send_frame(client.conn, change(frame), (list(fds) * 3)[:count])
        assert (await client.answer())[:2] == ("declined", code)
        assert await client.echoes()
        assert echo.reasons == ["version_mismatch" if code == VERSION else "internal_error"]


async def test_a_client_that_hangs_up_the_rendezvous_too_early() -> None:
    """The server finds out when it sends its MEMORY, and can still decline."""
    async with echoing() as echo, greeted(echo.target) as client:
        assert frames.send_frame(client.conn, *client.go)
        client.conn.close()
        assert (await client.answer())[:2] == ("declined", NO_DEVICE)
        assert await client.echoes()
        assert echo.reasons == ["no_smc_d_v2_device"]


class Late:
    """A client's set-up for which it is late from its step number `steps` on."""

    def __init__(self, real: _core.ClientSetup, steps: int) -> None:
        self._real = real
        self._steps = steps

    def step(self, now: float) -> Any:
        self._steps -= 1
        return self._real.step(now + (3600 if self._steps < 0 else 0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def be_late(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Each client's loop is so busy from a step on that its time is over."""
    real = negotiate.client_setup
    monkeypatch.setattr(negotiate, "client_setup", lambda *args: Late(real(*args), steps))


@pytest.mark.parametrize(("config", "steps"), [(SmcConfig(), 1), (ONLY, 2)], ids=["discovered", "assumed"])
async def test_a_late_client_says_nothing_more(monkeypatch: pytest.MonkeyPatch, config: SmcConfig, steps: int) -> None:
    """The Accept is there, but it must not confirm what the server may have given up by now."""
    be_late(monkeypatch, steps)
    async with echoing(config) as echo:
        assert await talk(*await smcfast.open_smc_connection(*echo.target, config=config)) == (
            "tcp",
            "handshake_failed",
        )
        # All that the server saw of the first connection is its end.
        assert echo.reasons == ["disabled" if config is ONLY else "peer_plain"]


class Stopped(Late):
    """A client that is stopped right before a step, of which it believes that it is still in time."""

    def step(self, now: float) -> Any:
        self._steps -= 1
        if self._steps == -1:
            time.sleep(2 * HASTY.handshake_timeout)
        return self._real.step(now)


async def serve_hastily(parent: Channel, assumes: bool) -> list[Any]:
    """Child: serve with a short time-out until the parent has enough, and return the reasons."""
    async with echoing(HASTY_ONLY if assumes else HASTY) as echo:
        parent.send(echo.target)
        assert await parent.areceive() == "enough"
        return echo.reasons


@pytest.mark.parametrize("assumes", [False, True], ids=["discovered", "assumed"])
async def test_a_client_that_is_stopped_at_any_step(
    spawn: Spawn, loop_kind: str, monkeypatch: pytest.MonkeyPatch, assumes: bool
) -> None:
    """The server may have given it up by the time that the Confirm comes: the user never gets a stream that is dead."""
    child = spawn(serve_hastily, assumes, loop=loop_kind)
    target = await child.areceive()
    config = HASTY_ONLY if assumes else HASTY
    real = negotiate.client_setup
    for steps in range(6):
        remembered.destinations._until.clear()
        made: list[Stopped] = []
        monkeypatch.setattr(
            negotiate, "client_setup", lambda *args, s=steps, m=made: m.append(Stopped(real(*args), s)) or m[0]
        )
        path, _ = await talk(*await smcfast.open_smc_connection(*target, config=config))
        assert path == ("tcp" if made[0]._steps < 0 else "smc-d")
    child.send("enough")
    await child.aresult()


async def test_a_client_that_is_late_before_its_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the stream is clean, and stays."""
    be_late(monkeypatch, 0)
    async with echoing() as echo:
        assert await talk(*await smcfast.open_smc_connection(*echo.target)) == ("tcp", "discovery_timeout")
        assert echo.reasons == ["peer_stopped"]


async def test_a_handshake_that_cannot_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's epoll watches are used up: the stream is spoiled, as by a peer that breaks off."""

    async def ready(*_: Any) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LoopEngine, "ready", ready)
    with steered() as client, pytest.raises(SmcHandshakeError, match="nothing can be waited for: No space left"):
        await handshake.run(client.setup, 0.0)


async def test_the_client_has_less_time_than_the_server() -> None:
    config = SmcConfig(handshake_timeout=80)
    clock = Clock.start(config)
    tcp, peer = socket.socketpair()
    with tcp, peer:
        for make, due in ((negotiate.client_setup, 70), (negotiate.server_setup, 80)):
            setup = make(clock, tcp, config)  # type: ignore[operator]
            wait = setup.step(clock.started)
            assert wait[2] == pytest.approx(clock.started + due, abs=1e-6)
            setup.release()


async def serve_in_child(parent: Channel, assumes: bool) -> list[Any]:
    """Child: serve until the parent has enough, and return the reasons."""
    async with echoing(ONLY if assumes else SmcConfig()) as echo:
        parent.send(echo.target)
        assert await parent.areceive() == "enough"
        return echo.reasons


@pytest.mark.parametrize(
    ("assumes", "left", "at_client", "at_server"),
    [
        (True, 4, "resources", "no_smc_d_v2_device"),  # TCP twice, memory, door: the server cannot be let in
        (True, 5, "no_smc_d_v2_device", "no_smc_d_v2_device"),  # it can, and there is no doorbell to hand over
        (True, 6, "out_of_memory", "out_of_memory"),  # its memory cannot
        (False, 6, "out_of_memory", "out_of_memory"),
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
        with socket.socket() as tcp, steered() as client:
            tcp.setblocking(False)
            await loop.sock_connect(tcp, echo.target)
            await asyncio.sleep(0.01)  # until it is accepted, which takes a descriptor too
            with descriptors_left(1):  # for its set-up
                assert (await client.answer(tcp))[:2] == ("declined", OUT_OF_MEMORY)
            await loop.sock_sendall(tcp, b"hello")
            assert await loop.sock_recv(tcp, 100) == b"hello"
        assert echo.reasons == ["out_of_memory"]


async def test_a_client_that_gives_up_before_the_memory() -> None:
    """It connects anew, so the application must not see its first connection, which has nothing but an end."""
    before = smcfast.stats()
    async with echoing() as echo:
        async with greeted(echo.target) as client:
            assert frames.send_frame(client.conn, *client.go)
            assert client.tcp.send(client.client.says())
        assert await talk(*await smcfast.open_smc_connection(*echo.target)) == ("smc-d", None)
        await eventually(lambda: smcfast.stats()["failed"] > before["failed"])
        assert echo.reasons == [None]


async def serve_without_descriptors(parent: Channel) -> None:
    """Child: serve, and be without descriptors while the parent connects twice."""
    acceptor.RETRY_DELAY = 0.05  # type: ignore[misc]
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # accept says that descriptors have run out
    async with echoing(SmcConfig()) as echo:
        parent.send(echo.target)
        assert await parent.areceive() == "now"
        await eventually(lambda: echo.served == len(echo.reasons))  # and has given back all that it took
        await turns()
        with descriptors_left(1):  # for the connection that is accepted
            parent.send("ready")
            assert await parent.areceive() == "enough"
        parent.send(echo.reasons)
        assert await parent.areceive() == "end"


@pytest.mark.parametrize("first", [False, True])
async def test_a_server_without_descriptors_says_so(spawn: Spawn, loop_kind: str, first: bool) -> None:
    """A moment's lack must not make the client take the listener for a plain one, be it the first client or not."""
    child = spawn(serve_without_descriptors, loop=loop_kind)
    target = await child.areceive()
    if not first:
        assert await talk(*await smcfast.open_smc_connection(*target)) == ("smc-d", None)
    child.send("now")
    assert await child.areceive() == "ready"
    for _ in range(2):
        assert await talk(*await smcfast.open_smc_connection(*target)) == ("tcp", "peer_stopped")
    child.send("enough")
    assert await child.areceive() == [None, "resources", "resources"][first:]
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
            assert frames.send_frame(client.conn, *client.go)
            client.tcp.shutdown(socket.SHUT_WR)
            assert await asyncio.get_running_loop().sock_recv(client.tcp, 1) == b""
    after = smcfast.stats()
    assert after["failed"] == before["failed"] + 1
    assert after["fallbacks"]["handshake_failed"] == before["fallbacks"]["handshake_failed"] + 1
    assert after["connections"] == before["connections"]
    assert [record.levelname for record in caplog.records if "is closed" in record.message] == [level]
