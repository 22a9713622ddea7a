"""Assumed peers: a handshake without discovery, and what becomes of it where the assumption is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, SmcHandshakeError, _core, reasons, remembered
from support.addresses import listening
from support.echo import echo, talk
from support.process import abstract_names
from support.sandbox import forbid_netlink, why_no_seccomp
from support.steered import steered, steered_server
from support.streams import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

EVERYBODY = SmcConfig(assume=("*:*",))
ONLY = SmcConfig(assume=("*:*",), discovery=())
HASTY = SmcConfig(assume=("*:*",), discovery=(), handshake_timeout=0.3)
NOBODY = SmcConfig(discovery=())


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    remembered.destinations._until.clear()
    yield
    assert abstract_names() == set()


@contextlib.asynccontextmanager
async def echoing(host: str, config: SmcConfig) -> AsyncIterator[tuple[str, int]]:
    server = await smcfast.start_smc_server(echo, host, 0, config=config)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        server.close_clients()
        await server.wait_closed()


async def test_both_ends_assume(host: str) -> None:
    async with echoing(host, ONLY) as target:
        for _ in range(3):
            assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("smc-d", None)


async def test_a_rendezvous_comes_first(host: str) -> None:
    async with echoing(host, EVERYBODY) as target:
        assert await talk(*await smcfast.open_smc_connection(*target)) == ("smc-d", None)
        assert await talk(*await smcfast.open_smc_connection(*target, config=EVERYBODY)) == ("smc-d", None)


async def test_a_connected_socket_may_be_assumed() -> None:
    async with echoing("127.0.0.1", ONLY) as target:
        sock = socket.create_connection(target, timeout=5)
        assert await talk(*await smcfast.open_smc_connection(sock=sock, config=ONLY)) == ("smc-d", None)
        sock = socket.create_connection(target, timeout=5)
        elsewhere = SmcConfig(assume=("192.0.2.0/24:*",))
        assert await talk(*await smcfast.open_smc_connection(sock=sock, config=elsewhere)) == ("tcp", "sock_given")


async def serve_in_child(parent: Channel) -> None:
    """Child without netlink: serve assumed clients until the parent has enough."""
    forbid_netlink()
    async with echoing("127.0.0.1", EVERYBODY) as target:
        parent.send(target)
        assert await parent.areceive() == "enough"


async def connect_in_child(parent: Channel, host: str, port: int) -> list[Any]:
    """Child without netlink: one assumed connection."""
    forbid_netlink()
    return list(await talk(*await smcfast.open_smc_connection(host, port, config=EVERYBODY)))


@pytest.mark.skipif(why_no_seccomp() is not None, reason=str(why_no_seccomp()))
async def test_where_look_ups_are_forbidden(spawn: Spawn, loop_kind: str) -> None:
    """What this mode is for: two processes of one host in a sandbox that has no netlink."""
    server = spawn(serve_in_child, loop=loop_kind)
    target = await server.areceive()
    client = spawn(connect_in_child, *target, loop=loop_kind)
    assert await client.aresult() == ["smc-d", None]
    server.send("enough")
    await server.aresult()


@pytest.mark.parametrize("start", [b"hello", b"\xe2\xd4xx", b"\xe2", b"\xe2\xd4\xc3", b"\xe2\xd4\xc3\xc5 close"])
async def test_a_plain_client_of_an_assumed_listener(host: str, start: bytes) -> None:
    """Not a byte is lost, however near to a handshake they look."""
    async with echoing(host, ONLY) as target:
        reader, writer = await asyncio.open_connection(*target)
        writer.write(start)
        writer.write_eof()
        assert await reader.read() == start
        writer.close()
        await writer.wait_closed()


async def test_a_plain_client_in_pieces() -> None:
    async with echoing("127.0.0.1", ONLY) as target:
        reader, writer = await asyncio.open_connection(*target)
        for piece in (b"\xe2", b"\xd4", b"\xc3", b"x"):
            writer.write(piece)
            await turns()  # the server sees each one alone
        assert await reader.readexactly(4) == b"\xe2\xd4\xc3x"
        for _ in range(3):  # and later ones are no longer waited for in fours
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("start", [b"1", b"GET", b"\xe2x", b"\xe2\xd4y"])
async def test_a_plain_client_that_begins_with_few_bytes(start: bytes) -> None:
    """What cannot become an eyecatcher is the application's at once: no time-out is waited for."""
    config = SmcConfig(assume=("*:*",), discovery=(), handshake_timeout=3600)
    async with echoing("127.0.0.1", config) as target:
        reader, writer = await asyncio.open_connection(*target)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for count in range(1, len(start) + 1):
            writer.write(start[count - 1 : count])
            await asyncio.sleep(0)
        assert await reader.readexactly(len(start)) == start
        writer.close()
        await writer.wait_closed()


async def test_a_plain_client_that_waits_for_the_server(host: str) -> None:
    """An assumed listener costs it the time-out: the documentation says so."""

    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready")
        writer.close()

    server = await smcfast.start_smc_server(greet, host, 0, config=HASTY)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    assert await reader.read() == b"220 ready"
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


class Plain:
    """A plain server that answers in one way to its first connection, and echoes on the others."""

    def __init__(self, how: str) -> None:
        self._how = how
        self.first_bytes: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(1000)
        self.first_bytes.append(data[:4])
        if len(self.first_bytes) > 1:
            writer.write(data)
            await echo(reader, writer)
        elif self._how == "garbage":
            writer.write(b"400 Bad Request\r\n\r\n" * 20)
        elif self._how == "repeats":
            writer.write(data)
        if self._how == "silence":
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
        writer.close()


@pytest.mark.parametrize("how", ["garbage", "repeats", "hangs up", "silence"])
async def test_a_plain_server_that_was_assumed(host: str, how: str) -> None:
    """A new connection takes its place, once; then the destination is remembered, and there is no handshake at all."""
    plain = Plain(how)
    server = await asyncio.start_server(plain, host, 0)
    target = server.sockets[0].getsockname()[:2]
    assert await talk(*await smcfast.open_smc_connection(*target, config=HASTY)) == ("tcp", "handshake_failed")
    assert await talk(*await smcfast.open_smc_connection(*target, config=HASTY)) == ("tcp", "destination_remembered")
    assert plain.first_bytes == [b"\xe2\xd4\xc3\xd9", b"hell", b"hell"]
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("how", ["garbage", "hangs up", "silence"])
async def test_a_local_port_of_the_users_choice(host: str, how: str) -> None:
    """The new connection needs the port that the spoiled one had."""
    plain = Plain(how)
    server = await asyncio.start_server(plain, host, 0)
    target = server.sockets[0].getsockname()[:2]
    with socket.socket(server.sockets[0].family) as probe:
        probe.bind((target[0], 0))
        local = probe.getsockname()[:2]
    pair = await smcfast.open_smc_connection(*target, local_addr=local, config=HASTY)
    assert pair[1].get_extra_info("sockname")[:2] == local
    assert await talk(*pair) == ("tcp", "handshake_failed")
    server.close()
    await server.wait_closed()


async def test_a_connected_socket_that_was_assumed_wrongly() -> None:
    """There is no way to another connection, so this is the caller's to know."""
    server = await asyncio.start_server(Plain("garbage"), "127.0.0.1", 0)
    sock = socket.create_connection(server.sockets[0].getsockname(), timeout=5)
    with pytest.raises(SmcHandshakeError, match=r"does the peer speak SMC\? check assume \(handshake_failed, 0x0A"):
        await smcfast.open_smc_connection(sock=sock, config=ONLY)
    assert sock.fileno() == -1
    server.close()
    await server.wait_closed()


async def test_forbidden_where_the_assumption_is_wrong() -> None:
    server = await asyncio.start_server(Plain("garbage"), "127.0.0.1", 0)
    config = SmcConfig(assume=("*:*",), discovery=(), fallback="forbid")
    with pytest.raises(smcfast.SmcFallbackError, match="handshake_failed"):
        await smcfast.open_smc_connection(*server.sockets[0].getsockname(), config=config)
    server.close()
    await server.wait_closed()


async def test_a_client_without_a_door_is_declined() -> None:
    """It may be on another host: Decline, and the same TCP connection goes on."""
    async with echoing("127.0.0.1", ONLY) as target:
        loop = asyncio.get_running_loop()
        with socket.socket() as tcp, steered() as client:
            tcp.setblocking(False)
            await loop.sock_connect(tcp, target)
            assert (await client.answer(tcp))[:2] == ("declined", 0x0303_0007)
            await loop.sock_sendall(tcp, b"hello")
            assert await loop.sock_recv(tcp, 100) == b"hello"


async def test_a_decline_of_any_code_is_told() -> None:
    """By name and code; what a peer of another make says is told as it came."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        for code in (*_core.DIAGNOSES, 0x1234_5678):
            opening = asyncio.ensure_future(smcfast.open_smc_connection(*listener.getsockname(), config=ONLY))
            tcp, _ = await loop.sock_accept(listener)
            with tcp, steered_server() as server:
                while server.setup.wants_meeting() is None:
                    server.hears(await loop.sock_recv(tcp, 4096))
                server.setup.decline(code, monotonic())
                await loop.sock_sendall(tcp, server.says() + b"hello")
                reader, writer = await opening
                assert await reader.readexactly(5) == b"hello"
                writer.close()
                await writer.wait_closed()
            info = writer.get_extra_info("smc")
            assert (info.path, info.fallback.code, info.reason) == ("tcp", code, reasons.diagnosis(code).name)


def connect_as(parent: Channel, host: str, port: int, uid: int) -> list[Any]:
    """Child of another user: one assumed connection."""
    socket.getaddrinfo("127.0.0.1", 0)  # what is needed must be loaded: the interpreter's files may be out of reach
    asyncio.run(asyncio.sleep(0))
    os.setgroups([])
    os.setuid(uid)

    async def connect() -> list[Any]:
        return list(await talk(*await smcfast.open_smc_connection(host, port, config=ONLY)))

    return asyncio.run(connect())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")
async def test_another_user_is_declined(spawn: Spawn) -> None:
    """The memory goes to allowed users only; the connection goes on as TCP."""
    async with echoing("127.0.0.1", ONLY) as target:
        child = spawn(connect_as, *target, 65534)
        assert await child.aresult() == ["tcp", "no_smc_d_v2_device"]


async def test_a_name_that_is_taken() -> None:
    """Two connections from one local port to different peers: the second one is TCP."""
    async with echoing("127.0.0.1", ONLY) as target, echoing("127.0.0.2", ONLY) as other:
        # Both share the local port, which SO_REUSEADDR allows for different destinations.
        pairs = []
        local = 0
        for address in (target, other):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", local))
            local = sock.getsockname()[1]
            sock.connect(address)
            pairs.append(sock)
        from smcfast import _loop, assume

        door = assume.Door(_loop.engine().core.id, pairs[0], ONLY)
        assert await talk(*await smcfast.open_smc_connection(sock=pairs[1], config=ONLY)) == ("tcp", "name_taken")
        door.close()
        assert await talk(*await smcfast.open_smc_connection(sock=pairs[0], config=ONLY)) == ("smc-d", None)


async def test_no_assumption_against_better_knowledge() -> None:
    """What spoke first is a plain server, whatever the configuration says."""
    from smcfast.registration import Registration

    loop = asyncio.get_running_loop()
    with listening("127.0.0.1") as (listeners, port):
        listeners[0].setblocking(False)
        with contextlib.closing(Registration(loop, listeners[0])):
            opening = asyncio.create_task(smcfast.open_smc_connection("127.0.0.1", port, config=EVERYBODY))
            conn, _ = await loop.sock_accept(listeners[0])
            with conn:
                conn.send(b"220 ready")
                reader, writer = await opening
                assert writer.get_extra_info("smc").reason == "server_spoke_first"
                assert await reader.readexactly(9) == b"220 ready"
                writer.close()
                await writer.wait_closed()
                assert await loop.sock_recv(conn, 100) == b""
