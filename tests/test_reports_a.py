"""Field reports, section A: is the fast path really taken, what happens where it is not, and does it say so?"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, SmcFallbackError, remembered, rendezvous
from smcfast.discovery import Caller, Invitation
from smcfast.registration import Registration
from support import frames
from support.addresses import listening
from support.namespaces import network, why_none
from support.process import abstract_names, descriptors
from support.steered import greeted, steered_server
from support.streams import connected, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

PROPOSAL = b"\xe2\xd4\xc3\xd9"


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    remembered.listeners._until.clear()
    remembered.destinations._until.clear()


@contextlib.asynccontextmanager
async def echoing(**options: Any) -> AsyncIterator[tuple[Any, list[bytes]]]:
    """A server that echoes, and the first bytes that its application got of each connection."""
    firsts: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            firsts.append(await reader.read(100))
            writer.write(firsts[-1])
            while data := await reader.read(100_000):
                writer.write(data)
        writer.close()

    server = await smcfast.start_smc_server(echo, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname(), firsts
    finally:
        server.close()
        server.close_clients()
        await server.wait_closed()


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> smcfast.SmcInfo:
    """Say something, hear it again, hang up."""
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()
    info: smcfast.SmcInfo = writer.get_extra_info("smc")
    return info


async def taken(conn: socket.socket, fds: bool = True) -> bytes:
    """The next frame of the rendezvous connection; its descriptors are of no interest."""
    loop = asyncio.get_running_loop()
    packet = await frames.next_frame(loop, conn, loop.time() + 8)
    assert packet is not None
    rendezvous.close_fds(packet[1])
    return packet[0]


@pytest.mark.parametrize("how", ["garbage", "repeats", "hangs up"])
async def test_report_01_a_server_that_answers_garbage_costs_one_connection(how: str) -> None:
    """It has announced itself, and then does not speak the protocol: the user gets a stream that works."""
    loop = asyncio.get_running_loop()
    with listening("127.0.0.1") as (listeners, port):
        listener = listeners[0]
        listener.setblocking(False)
        with contextlib.closing(Registration(loop, listener)):
            opening = asyncio.create_task(smcfast.open_smc_connection("127.0.0.1", port))
            tcp, _ = await loop.sock_accept(listener)
            with tcp, contextlib.closing(Caller(tcp, SmcConfig(), busy=False)) as caller:
                assert caller.conn is not None
                with steered_server() as server:
                    assert frames.send_frame(caller.conn, server.hello())
                await taken(caller.conn)
                proposal = await loop.sock_recv(tcp, 4096)
                assert proposal.startswith(PROPOSAL)
                if how != "hangs up":
                    await loop.sock_sendall(tcp, proposal if how == "repeats" else b"400 Bad Request\r\n\r\n" * 20)
            tcp, _ = await loop.sock_accept(listener)
            with tcp:
                reader, writer = await opening
                assert writer.get_extra_info("smc").reason == "handshake_failed"
                writer.write(b"hello")
                assert await loop.sock_recv(tcp, 100) == b"hello"
                await loop.sock_sendall(tcp, b"world")
                assert await reader.readexactly(5) == b"world"
                writer.close()
                await writer.wait_closed()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", PROPOSAL + b"\1\xff\xff" + b"x" * 100, b"\0"])
async def test_report_01_a_client_that_sends_garbage_never_reaches_the_application(garbage: bytes) -> None:
    """It has said that it proposes; what comes instead is nobody's, and the next client is served."""
    loop = asyncio.get_running_loop()
    async with echoing() as (target, firsts):
        async with greeted(target) as client:
            assert frames.send_frame(client.conn, *client.go)
            await loop.sock_sendall(client.tcp, garbage)
            client.tcp.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while await loop.sock_recv(client.tcp, 100):  # a Decline at most, then the end
                    pass
        assert (await talk(*await smcfast.open_smc_connection(*target))).path == "smc-d"
        assert firsts == [b"hello"]


async def test_report_02_a_fallback_is_told_by_the_stream_and_by_one_line(caplog: pytest.LogCaptureFixture) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    with caplog.at_level(logging.INFO, "smcfast"):
        _, writer = await smcfast.open_smc_connection(*server.sockets[0].getsockname())
    info = writer.get_extra_info("smc")
    assert info.path == "tcp"
    assert info.fallback == (0x0301_0000, "peer_plain", "the peer did not announce SMC")
    assert str(info.fallback) in repr(writer) or info.reason in repr(writer)
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.INFO, "smcfast")
    assert "is TCP: the peer did not announce SMC (peer_plain, 0x03010000)" in record.getMessage()
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("policy", ["allow", "warn", "forbid"])
async def test_report_03_what_happens_without_the_fast_path_is_a_setting(
    policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    target = server.sockets[0].getsockname()
    config = SmcConfig(fallback=policy)
    with caplog.at_level(logging.INFO, "smcfast"):
        if policy == "forbid":
            with pytest.raises(SmcFallbackError) as caught:
                await smcfast.open_smc_connection(*target, config=config)
            assert (caught.value.name, caught.value.code) == ("peer_plain", 0x0301_0000)
            assert isinstance(caught.value, OSError)
        else:
            reader, writer = await smcfast.open_smc_connection(*target, config=config)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
    assert [record.levelname for record in caplog.records] == ["WARNING" if policy == "warn" else "INFO"]
    server.close()
    await server.wait_closed()


async def test_report_04_a_probe_that_nobody_answers_is_paid_for_once() -> None:
    """The first connection waits for the grace, the next one opens no door at all."""
    loop = asyncio.get_running_loop()
    with listening("127.0.0.1") as (listeners, _):
        listener = listeners[0]
        listener.setblocking(False)
        target = listener.getsockname()
        with contextlib.closing(Registration(loop, listener)):
            reasons = []
            for expected_doors in (1, 0):
                opening = asyncio.create_task(smcfast.open_smc_connection(*target))
                if expected_doors:
                    await eventually(lambda: doors() == 1)
                tcp, _ = await loop.sock_accept(listener)
                with tcp:
                    _, writer = await opening
                    reasons.append(writer.get_extra_info("smc").reason)
                    writer.close()
                    await writer.wait_closed()
            assert reasons == ["accepted_plain", "listener_remembered"]
            with socket.socket() as tcp, contextlib.closing(Invitation(tcp, target, SmcConfig())):
                assert doors() == 0


def doors() -> int:
    return sum(name.startswith("smcfast/c/") for name in abstract_names())


async def cause_fallbacks(_parent: Channel, plain: list[Any]) -> list[Any]:
    """Child: several connections that are TCP, each for a reason of its own, and one that is not."""
    async with echoing() as (target, _):
        await talk(*await smcfast.open_smc_connection(*target))
        expected: dict[str, int] = {}
        for config, where, name in (
            (None, plain, "peer_plain"),
            (None, plain, "peer_plain"),
            (SmcConfig(paths=()), plain, "disabled"),
            (SmcConfig(discovery=()), plain, "disabled"),
            (SmcConfig(assume=("*:*",), discovery=(), handshake_timeout=0.3), plain, "handshake_failed"),
            (SmcConfig(assume=("*:*",), discovery=()), plain, "destination_remembered"),
        ):
            info = await talk(*await smcfast.open_smc_connection(*where, config=config))
            assert info.reason == name
            expected[name] = expected.get(name, 0) + 1
        with pytest.raises(SmcFallbackError):
            await smcfast.open_smc_connection(*plain, config=SmcConfig(fallback="forbid"))
        expected["peer_plain"] += 1
    stats = smcfast.stats()
    found = {name: count for name, count in stats["fallbacks"].items() if count}
    return [found, expected, stats["connections"], stats["forbidden"], stats["failed"]]


async def test_report_05_each_reason_has_a_counter_and_their_sum_is_right(spawn: Spawn, loop_kind: str) -> None:
    """In a process of its own, since the counters are the process's."""
    seen = 0

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        data = await reader.read(100)
        if data.startswith(PROPOSAL):
            writer.close()
            return
        seen += bool(data)
        writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    child = spawn(cause_fallbacks, server.sockets[0].getsockname(), loop=loop_kind)
    found, expected, connections, forbidden, failed = await child.aresult(silent=False)
    assert found == expected
    assert (connections["tcp"], connections["smc-d"]) == (seen, 2)
    assert sum(found.values()) == connections["tcp"] + forbidden + failed
    assert (forbidden, failed) == (1, 0)
    server.close()
    await server.wait_closed()


async def mapped(_parent: Channel) -> list[str]:
    """Child: move something over the ring; which libraries and devices of RDMA that has touched."""
    async with connected() as (client, server):
        client.writer.write(b"hello")
        assert await server.reader.readexactly(5) == b"hello"
    maps = Path("/proc/self/maps").read_text()  # noqa: ASYNC240 - of the process, not of a disk
    used = [line.split()[-1] for line in maps.splitlines()] + list(descriptors().values())
    return [name for name in used if any(word in name for word in ("ibverbs", "rdma", "infiniband", "mlx"))]


async def test_report_07_without_rdma_what_is_there_is_used(spawn: Spawn, loop_kind: str) -> None:
    """Nothing of it is looked for, so it does not matter whether this machine has a device or the library."""
    assert await spawn(mapped, loop=loop_kind).aresult() == []


@pytest.mark.parametrize("host", ["127.0.0.2", "::1"])
async def test_report_08_data_takes_no_address_that_was_not_asked_for(spawn: Spawn, loop_kind: str, host: str) -> None:
    """The two ends of the TCP connection, and its listener, are all that the processes have in the network."""
    child = spawn(serve_one, host, loop=loop_kind)
    port = await child.areceive()
    before = in_network()
    reader, writer = await smcfast.open_smc_connection(host, port)
    writer.write(b"x" * 3_000_000)
    assert len(await reader.readexactly(3_000_000)) == 3_000_000
    assert writer.get_extra_info("smc").path == "smc-d"
    assert writer.get_extra_info("peername")[:2] == (host, port)
    assert len(in_network() - before) == 1
    child.send("enough")
    assert await child.areceive() == 2  # its listener and its end
    writer.close()
    await writer.wait_closed()
    await child.aresult()


async def serve_one(parent: Channel, host: str) -> None:
    """Child: echo one connection; then how many sockets of the network there are."""
    done = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100_000):
            writer.write(data)
            await writer.drain()
        writer.close()
        done.set()

    server = await smcfast.start_smc_server(echo, host, 0)
    parent.send(server.sockets[0].getsockname()[1])
    assert await parent.areceive() == "enough"
    parent.send(len(in_network()))
    await done.wait()
    server.close()
    await server.wait_closed()


def in_network() -> set[str]:
    """The sockets of IPv4 and IPv6, of whatever protocol, that this process holds."""
    own = set(descriptors().values())
    found = set()
    for name in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "udplite", "udplite6"):
        with contextlib.suppress(FileNotFoundError):
            lines = Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
            found |= {inode for line in lines if f"socket:[{(inode := line.split()[9])}]" in own}
    return found


PAYLOAD = 32 << 20


async def count_loopback(_parent: Channel, path: str) -> list[int]:
    """Child: move a payload from one end to the other: how many bytes has the loopback device seen?"""
    config = SmcConfig() if path == "smc-d" else SmcConfig(paths=())
    async with connected(path=path, config=config) as (client, server):
        before = loopback_bytes()

        async def send() -> None:
            for _ in range(PAYLOAD >> 20):
                client.writer.write(b"x" * (1 << 20))
                await client.writer.drain()

        sending = asyncio.create_task(send())
        for _ in range(PAYLOAD >> 20):
            await server.reader.readexactly(1 << 20)
        await sending
        return [loopback_bytes() - before, client.info.fallback is not None]


def loopback_bytes() -> int:
    """Bytes received by the loopback device of the own network namespace."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    raise AssertionError("no loopback device")


@pytest.mark.skipif(why_none() is not None, reason=str(why_none()))
@pytest.mark.parametrize("path", ["smc-d", "tcp"])
async def test_report_12_what_is_in_shared_memory_is_not_on_the_loopback_device(
    spawn: Spawn, loop_kind: str, path: str
) -> None:
    """In a network of its own, where nobody else moves anything; and by TCP the counter does count."""
    with network() as command:
        child = spawn(count_loopback, path, loop=loop_kind, within=command)
        seen, explained = await child.aresult(silent=False)
    if path == "smc-d":
        assert seen < PAYLOAD // 100
        assert not explained
    else:
        assert seen >= PAYLOAD
        assert explained
