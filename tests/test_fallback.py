"""Fallback: each reason comes about for real, is told in every place, and leaves a TCP stream that works."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import resource
import socket
import struct
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import Fallback, SmcConfig, SmcFallbackError, devices, discovery, netlink, reasons, remembered
from smcfast.discovery import Caller, Invitation
from smcfast.registration import Registration
from support import frames
from support.addresses import listening
from support.process import abstract_names
from support.sandbox import forbid_netlink, why_no_seccomp
from support.tls import client_context, server_context

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Callable, Iterator

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]
    Run = Callable[..., subprocess.CompletedProcess[str]]

FORBID = SmcConfig(fallback="forbid")


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """Whatever a test does, each fallback is counted once, under its reason."""
    remembered.listeners._until.clear()
    before = smcfast.stats()
    yield
    after = smcfast.stats()
    fallbacks = sum(after["fallbacks"].values()) - sum(before["fallbacks"].values())
    tcp = after["connections"]["tcp"] - before["connections"]["tcp"]
    streamless = sum(after[key] - before[key] for key in ("forbidden", "failed"))  # type: ignore[literal-required]
    assert fallbacks == tcp + streamless
    assert abstract_names() == set()


class Echo:
    """A server of smcfast that echoes, and what its streams said of their path."""

    def __init__(self) -> None:
        self.infos: list[smcfast.SmcInfo] = []
        self.server: smcfast.SmcServer | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.infos.append(writer.get_extra_info("smc"))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                writer.write(data)
        writer.close()

    @property
    def target(self) -> tuple[str, int]:
        assert self.server is not None
        address: tuple[str, int] = self.server.sockets[0].getsockname()[:2]
        return address


@contextlib.asynccontextmanager
async def echoing(host: str = "127.0.0.1", **options: Any) -> AsyncIterator[Echo]:
    echo = Echo()
    echo.server = await smcfast.start_smc_server(echo.serve, host, 0, **options)
    try:
        yield echo
    finally:
        echo.server.close()
        echo.server.close_clients()
        await echo.server.wait_closed()


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> smcfast.SmcInfo:
    """Say something, hear it again, hang up: the path's description."""
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()
    info: smcfast.SmcInfo = writer.get_extra_info("smc")
    return info


def check(info: smcfast.SmcInfo, name: str) -> None:
    assert info.path == "tcp"
    assert info.fallback is not None
    assert info.fallback[:2] == reasons.reason(name)[:2]
    assert (info.reason, info.rmb_size, dict(info.counters)) == (name, None, {})
    assert info.setup_us is not None


def test_codes_are_local_and_unique() -> None:
    rows = [reasons.reason(name) for name in reasons.names() if name in reasons._TABLE]
    assert len({row.code for row in rows}) == len({row.name for row in rows}) == len(rows)
    assert {hex(row.code >> 16) for row in rows} == {"0xa00", "0x301"}
    assert reasons.reason("platform").code == 0x0A00_0001
    assert reasons.diagnosis(0x0303_0007).name == "no_smc_d_v2_device"
    assert reasons.diagnosis(0x0301_0000) == reasons.reason("peer_plain")
    assert reasons.diagnosis(0x1234_5678) == Fallback(0x1234_5678, "diagnosis_12345678", "an unknown diagnosis")
    assert set(smcfast.stats()["fallbacks"]) >= set(reasons.names())


async def test_a_plain_server_sees_only_the_applications_bytes(host: str) -> None:
    with listening(host) as (listeners, port):
        listeners[0].setblocking(False)
        opening = asyncio.create_task(smcfast.open_smc_connection(host, port))
        conn, _ = await asyncio.get_running_loop().sock_accept(listeners[0])
        _, writer = await opening
        check(writer.get_extra_info("smc"), "peer_plain")
        assert "peer_plain" in repr(writer)
        with conn:
            writer.write(b"only this")
            writer.close()
            await writer.wait_closed()
            assert conn.recv(100) == b"only this"
            assert conn.recv(100) == b""


async def test_a_plain_client_sees_only_the_applications_bytes(host: str) -> None:
    async with echoing(host) as echo:
        reader, writer = await asyncio.open_connection(*echo.target)
        await talk(reader, writer)
        check(echo.infos[0], "peer_plain")


SWITCHED_OFF = [
    (SmcConfig(paths=()), "the configuration switches every SMC path or every discovery off"),
    (SmcConfig(discovery=()), "the configuration switches every SMC path or every discovery off"),
    (SmcConfig(discovery=(), assume=("*:1",)), "discovery is switched off, and assume does not name this peer"),
]


async def test_switched_off() -> None:
    async with echoing() as echo:
        for off, text in SWITCHED_OFF:
            info = await talk(*await smcfast.open_smc_connection(*echo.target, config=off))
            check(info, "disabled")
            assert info.fallback is not None
            assert text in info.fallback.text
            config = dataclasses.replace(off, fallback="forbid")
            with pytest.raises(SmcFallbackError, match="disabled"):
                await smcfast.open_smc_connection(*echo.target, config=config)
    async with echoing(config=SmcConfig(paths=())) as echo:
        check(await talk(*await smcfast.open_smc_connection(*echo.target)), "peer_plain")
        check(echo.infos[0], "disabled")


async def test_tls_is_no_reason(host: str) -> None:
    async with echoing(host, ssl=server_context()) as echo:
        reader, writer = await smcfast.open_smc_connection(*echo.target, ssl=client_context(), config=FORBID)
        assert writer.get_extra_info("ssl_object") is not None
        info = await talk(reader, writer)
        assert (info.path, info.fallback) == ("smc-d", None)
        assert (echo.infos[0].path, echo.infos[0].fallback) == ("smc-d", None)


async def test_a_failed_tls_handshake_is_the_users_error() -> None:
    import ssl

    async with echoing(ssl=server_context()) as echo:
        with pytest.raises(ssl.SSLCertVerificationError):
            await smcfast.open_smc_connection(*echo.target, ssl=True)
        assert echo.infos == []


async def test_a_socket_that_was_given() -> None:
    async with echoing() as echo:
        sock = socket.create_connection(echo.target, timeout=5)
        check(await talk(*await smcfast.open_smc_connection(sock=sock)), "sock_given")
        sock = socket.create_connection(echo.target, timeout=5)
        with pytest.raises(SmcFallbackError, match="sock_given"):
            await smcfast.open_smc_connection(sock=sock, config=FORBID)
        assert sock.fileno() == -1


async def test_a_server_that_speaks_first() -> None:
    """Announced, but whoever accepts it is another program: its bytes are the stream's first."""
    with listening("127.0.0.1") as (listeners, port), announced(listeners[0]):
        opening = asyncio.create_task(smcfast.open_smc_connection("127.0.0.1", port))
        conn, _ = await asyncio.get_running_loop().sock_accept(listeners[0])
        with conn:
            conn.send(b"220 ready")
            reader, writer = await opening
            check(writer.get_extra_info("smc"), "server_spoke_first")
            assert await reader.readexactly(9) == b"220 ready"
            writer.close()
            await writer.wait_closed()


@contextlib.contextmanager
def announced(listener: socket.socket) -> Iterator[None]:
    listener.setblocking(False)
    with contextlib.closing(Registration(asyncio.get_running_loop(), listener)):
        yield


async def test_an_acceptor_that_does_not_answer_is_remembered() -> None:
    with listening("127.0.0.1") as (listeners, port), announced(listeners[0]):
        for expected in ("accepted_plain", "listener_remembered"):
            opening = asyncio.create_task(smcfast.open_smc_connection("127.0.0.1", port))
            conn, _ = await asyncio.get_running_loop().sock_accept(listeners[0])
            with conn:
                _, writer = await opening
                check(writer.get_extra_info("smc"), expected)
                writer.close()
                await writer.wait_closed()


async def test_nobody_accepts_in_time() -> None:
    config = SmcConfig(handshake_timeout=0.2)
    with listening("127.0.0.1") as (listeners, port), announced(listeners[0]):
        _, writer = await smcfast.open_smc_connection("127.0.0.1", port, config=config)
        check(writer.get_extra_info("smc"), "discovery_timeout")
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_does_not_decide_in_time() -> None:
    """The server waits no longer than its time-out, and then serves it as TCP."""
    async with echoing(config=SmcConfig(handshake_timeout=0.2)) as echo:
        with socket.socket() as tcp:
            tcp.setblocking(False)
            with contextlib.closing(Invitation(tcp, echo.target, SmcConfig())):
                loop = asyncio.get_running_loop()
                await loop.sock_connect(tcp, echo.target)
                await loop.sock_sendall(tcp, b"hello")
                assert await loop.sock_recv(tcp, 100) == b"hello"
                check(echo.infos[0], "discovery_timeout")


def hello(version: int, layout: int = 0) -> bytes:
    """A HELLO as another build would send it."""
    return struct.pack("<8sHHIQ16s", b"smcfast\0", version, 1, 40, layout, bytes(16))


def layout() -> int:
    """The hash of this build's layout of shared memory, as its own frames have it."""
    from smcfast import _core

    engine = _core.Engine(asyncio.Future, lambda *_: None, lambda _: None, lambda: None)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        _core.ServerSetup(engine, near.fileno(), 16384, 0.0, 1.0, False).meet(os.dup(near.fileno()), 1.0)
        hello = far.recv(100)
    return int(struct.unpack_from("<Q", hello, 16)[0])


LAYOUT = layout()


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (hello(2), "version"),
        (hello(1), "version"),
        (struct.pack("<8sHHIQII", b"smcfast\0", 1, 3, 32, LAYOUT, 2, 0), "version"),
        (struct.pack("<8sHHIQII", b"smcfast\0", 1, 3, 32, LAYOUT, 3, 0), "protocol"),
        (b"x" * 40, "protocol"),
        (b"x", "protocol"),
    ],
)
async def test_a_server_of_another_build(frame: bytes, name: str) -> None:
    """The client sends STOP, and both go on with TCP."""
    with listening("127.0.0.1") as (listeners, port), announced(listeners[0]):
        opening = asyncio.create_task(smcfast.open_smc_connection("127.0.0.1", port))
        loop = asyncio.get_running_loop()
        conn, _ = await loop.sock_accept(listeners[0])
        with conn, contextlib.closing(Caller(conn, SmcConfig(), busy=False)) as caller:
            assert caller.conn is not None
            frames.send_frame(caller.conn, frame)
            reader, writer = await opening
            info = writer.get_extra_info("smc")
            assert (info.path, info.fallback.name, info.fallback.code) == ("tcp", name, reasons.reason(name).code)
            stop = await frames.next_frame(loop, caller.conn, loop.time() + 5)
            assert stop is not None
            assert struct.unpack_from("<8sHH", stop[0]) == (b"smcfast\0", 1, 3)
            conn.send(b"hi")
            assert await reader.readexactly(2) == b"hi"
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (struct.pack("<8sHHIQII", b"smcfast\0", 1, 3, 32, 0, 1, 0), "version"),
        (struct.pack("<8sHHIQII", b"smcfast\0", 2, 3, 32, 0, 1, 0), "version"),
        (struct.pack("<8sHHIQ", b"smcfast\0", 2, 3, 24, 0), "version"),
        (b"", "peer_stopped"),
    ],
)
async def test_a_client_that_stops(answer: bytes, name: str) -> None:
    async with echoing() as echo:
        loop = asyncio.get_running_loop()
        with socket.socket() as tcp:
            tcp.setblocking(False)
            with contextlib.closing(Invitation(tcp, echo.target, SmcConfig())) as invitation:
                await loop.sock_connect(tcp, echo.target)
                conn = await invitation.answer(tcp, loop.time() + 5)
                assert isinstance(conn, socket.socket)
                with conn:
                    assert await frames.next_frame(loop, conn, loop.time() + 5)
                    assert answer == b"" or frames.send_frame(conn, answer)
            await loop.sock_sendall(tcp, b"hello")
            assert await loop.sock_recv(tcp, 100) == b"hello"
            assert echo.infos[0].reason == name


async def test_a_handshake_that_breaks_off_is_mended(host: str) -> None:
    """CLC bytes have entered the stream: a new plain connection takes its place, and the user sees nothing."""
    with listening(host) as (listeners, port), announced(listeners[0]):
        loop = asyncio.get_running_loop()
        opening = asyncio.create_task(smcfast.open_smc_connection(host, port))
        conn, _ = await loop.sock_accept(listeners[0])
        with contextlib.closing(Caller(conn, SmcConfig(), busy=False)) as caller:
            assert caller.conn is not None
            assert frames.send_frame(caller.conn, hello(1, LAYOUT))
            assert await frames.next_frame(loop, caller.conn, loop.time() + 5)
            assert (await loop.sock_recv(conn, 4)).startswith(b"\xe2\xd4\xc3")
            conn.close()
        conn, _ = await loop.sock_accept(listeners[0])
        with conn:
            _, writer = await opening
            assert writer.get_extra_info("smc").reason == "handshake_failed"
            writer.write(b"only this")
            assert await loop.sock_recv(conn, 100) == b"only this"
            writer.close()
            await writer.wait_closed()


async def test_no_descriptors_for_the_set_up(host: str) -> None:
    """The TCP socket could be had, and nothing more: the connection is TCP all the same."""
    async with echoing(host) as echo:
        check(await talk(*await with_descriptors(5, smcfast.open_smc_connection, *echo.target)), "resources")


async def with_descriptors(count: int, function: Callable[..., Any], *args: Any) -> Any:
    """`function` where only `count` more descriptors can be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as fillers:
        probe = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
        limit = max(probe) + 1
        for fd in probe:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        fillers.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        return await function(*args)


async def echo_in_child(parent: Channel, sandboxed: bool, config: dict[str, Any]) -> list[Any]:
    """Child: serve one connection, and return how its path was."""
    if sandboxed:
        forbid_netlink()
    async with echoing(config=SmcConfig(**config)) as echo:
        parent.send(echo.target)
        assert await parent.areceive() == "done"
        return [[info.path, info.reason] for info in echo.infos]


async def talk_in_child(parent: Channel, host: str, port: int, sandboxed: bool) -> list[Any]:
    """Child: connect, talk, and return how the path was."""
    if sandboxed:
        forbid_netlink()
    info = await talk(*await smcfast.open_smc_connection(host, port))
    return [info.path, info.reason]


@pytest.mark.skipif(why_no_seccomp() is not None, reason=str(why_no_seccomp()))
async def test_a_sandbox_without_netlink(spawn: Spawn, loop_kind: str) -> None:
    """Both ends work, and each says why it cannot know."""
    child = spawn(echo_in_child, True, {}, loop=loop_kind)
    target = await child.areceive()
    info = await talk(*await smcfast.open_smc_connection(*target))
    assert info.reason == "peer_plain"  # who cannot look for clients does not announce, and costs nobody a wait
    child.send("done")
    assert await child.aresult() == [["tcp", "no_sock_diag"]]
    async with echoing() as echo:
        child = spawn(talk_in_child, *echo.target, True, loop=loop_kind)
        assert await child.aresult() == ["tcp", "no_sock_diag"]
        check(echo.infos[0], "peer_plain")


async def test_two_processes(spawn: Spawn, loop_kind: str) -> None:
    child = spawn(echo_in_child, False, {}, loop=loop_kind)
    target = await child.areceive()
    for _ in range(3):
        assert (await talk(*await smcfast.open_smc_connection(*target, config=FORBID))).path == "smc-d"
    child.send("done")
    assert await child.aresult() == [["smc-d", None]] * 3


async def test_what_an_established_stream_tells(host: str) -> None:
    async with echoing(host, config=SmcConfig(rmb_size=65536)) as echo:
        config = SmcConfig(rmb_size=131072)
        reader, writer = await smcfast.open_smc_connection(*echo.target, config=config)
        info = writer.get_extra_info("smc")
        assert (info.path, info.fallback, info.reason) == ("smc-d", None, None)
        assert (info.version, info.release, info.eid) == (2, 1, "SMCFAST")
        assert (info.rmb_size, info.peer_rmb_size) == (131072, 65536)
        assert (info.mtu, info.device, info.qpn) == (None, None, None)
        assert len(info.gid) == len(info.peer_gid) == 32
        assert info.setup_us > 0
        await talk(reader, writer)
        assert info.counters["bytes_sent"] == 5


@pytest.mark.parametrize(("policy", "level"), [("allow", logging.INFO), ("warn", logging.WARNING)])
async def test_the_log_line(caplog: pytest.LogCaptureFixture, policy: Any, level: int) -> None:
    with listening("127.0.0.1") as (_, port), caplog.at_level(logging.DEBUG, "smcfast"):
        _, writer = await smcfast.open_smc_connection("127.0.0.1", port, config=SmcConfig(fallback=policy))
        writer.close()
        await writer.wait_closed()
    (record,) = (record for record in caplog.records if record.name == "smcfast")
    assert record.levelno == level
    for part in ("client", "127.0.0.1", str(port), "peer_plain", "0x03010000", "the peer did not announce SMC"):
        assert part in record.message


@pytest.mark.parametrize("role", ["client", "server"])
async def test_a_user_who_is_not_allowed_is_named(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    strict = SmcConfig(handshake_timeout=6.5)
    monkeypatch.setattr(discovery, "allowed_uids", lambda config: set() if config is strict else {os.geteuid()})
    options = {end: {"config": strict} if end == role else {} for end in ("client", "server")}
    async with echoing(**options["server"]) as echo:
        info = await talk(*await smcfast.open_smc_connection(*echo.target, **options["client"]))
        told = info if role == "client" else echo.infos[0]
        check(told, "uid")
        assert f"the peer runs as user {os.geteuid()}, who is not allowed; this is user" in str(told.fallback)


async def test_a_unix_socket_is_served_over_itself(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as folder, caplog.at_level(logging.INFO, "smcfast"):
        path = f"{folder}/socket"
        listener, sock = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        listener.bind(path)
        echo = Echo()
        echo.server = await smcfast.start_smc_server(echo.serve, sock=listener)
        sock.connect(path)
        check(await talk(*await smcfast.open_smc_connection(sock=sock)), "not_inet")
        check(echo.infos[0], "not_inet")
        echo.server.close()
        await echo.server.wait_closed()
    said = {record.message.partition(" is TCP")[0] for record in caplog.records if record.name == "smcfast"}
    assert said == {f"client connection with {path}", "server connection with an unnamed socket"}


async def test_forbidden_by_the_client(host: str) -> None:
    forbidden = smcfast.stats()["forbidden"]
    with listening(host) as (listeners, port):
        with pytest.raises(SmcFallbackError) as caught:
            await smcfast.open_smc_connection(host, port, config=FORBID)
        assert smcfast.stats()["forbidden"] == forbidden + 1
        assert (caught.value.code, caught.value.name) == (0x0301_0000, "peer_plain")
        assert caught.value.errno == errno.EPROTONOSUPPORT
        assert "the peer did not announce SMC" in str(caught.value)
        conn, _ = listeners[0].accept()
        with conn:
            assert conn.recv(1) == b""


async def test_a_server_that_could_never_be_anything_but_tcp() -> None:
    """Told when it is started, and not by a row of connections that are closed."""

    def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    with pytest.raises(SmcFallbackError, match="disabled"):
        await smcfast.start_smc_server(never, "127.0.0.1", 0, config=SmcConfig(fallback="forbid", paths=()))


async def test_forbidden_by_the_server(host: str) -> None:
    async with echoing(host, config=FORBID) as echo:
        reader, writer = await asyncio.open_connection(*echo.target)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert echo.infos == []
        assert (await talk(*await smcfast.open_smc_connection(*echo.target))).path == "smc-d"


WITHOUT_CORE = """
import sys
if how == "core": sys.modules["smcfast._core"] = None
import asyncio
if how == "darwin": sys.platform = "darwin"
import smcfast

async def serve(reader, writer):
    print(writer.get_extra_info("smc").reason)
    writer.write(await reader.readexactly(5))
    writer.close()

async def main():
    server = await smcfast.start_smc_server(serve, "127.0.0.1", 0)
    reader, writer = await smcfast.open_smc_connection(*server.sockets[0].getsockname())
    writer.write(b"hello")
    assert await reader.read() == b"hello"
    writer.close()
    await writer.wait_closed()
    server.close()
    info = writer.get_extra_info("smc")
    print(info.path, info.reason, smcfast.stats()["fallbacks"]["platform"])

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["core", "darwin"])
def test_another_platform(run_python: Run, how: str) -> None:
    done = run_python("-W", "error", "-c", f"how = {how!r}\n{WITHOUT_CORE}")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines() == ["platform", "tcp platform 2"]


LOGGED = """
import asyncio, smcfast
async def main():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    _, writer = await smcfast.open_smc_connection(*server.sockets[0].getsockname())
    writer.close()
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("level", "shown"), [("info", True), ("DEBUG", True), ("warning", False), ("", False), (" ", False)]
)
def test_the_variable_that_shows_the_log(run_python: Run, level: str, shown: bool) -> None:
    done = run_python("-c", LOGGED, env={"SMCFAST_LOG": level})
    assert done.returncode == 0
    assert ("is TCP: the peer did not announce SMC (peer_plain, 0x03010000)" in done.stderr) == shown
    assert len(done.stderr.splitlines()) == shown
    # A user's own logging is left as it is, and no line comes twice, whichever comes first.
    done = run_python("-c", f"import logging; logging.basicConfig()\n{LOGGED}", env={"SMCFAST_LOG": level})
    assert len(done.stderr.splitlines()) == shown
    assert not shown or done.stderr.startswith("INFO:smcfast:")
    later = f"{LOGGED}\nimport logging; logging.basicConfig()\nasyncio.run(main())"
    done = run_python("-c", later, env={"SMCFAST_LOG": level})
    assert len(done.stderr.splitlines()) == 2 * shown


def test_a_wrong_level_is_said(run_python: Run) -> None:
    done = run_python("-c", LOGGED, env={"SMCFAST_LOG": "loud"})
    assert done.returncode == 1
    assert (
        "SmcConfigError: environment variable SMCFAST_LOG='loud': must be one of debug, info, warning, error"
        in done.stderr
    )


@pytest.fixture(scope="module", autouse=True)
def this_threads_netlink_socket() -> None:
    netlink.listener_of(netlink.destination(("127.0.0.1", 1)))


async def test_smc_r_alone_needs_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "are_there", lambda: False)
    alone = SmcConfig(paths=("smc-r",))
    async with echoing() as echo:
        check(await talk(*await smcfast.open_smc_connection(*echo.target, config=alone)), "no_rdma_device")
    async with echoing(config=alone) as echo:
        await talk(*await smcfast.open_smc_connection(*echo.target))
        check(echo.infos[0], "no_rdma_device")
