"""The TCP option: its bytes on the wire, each rule of docs/option.md, and what becomes of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING

import pytest

import smcfast
from smcfast import SmcConfig, SmcHandshakeError, option, reasons, remembered
from support.capture import ACK, OPTION, SYN, capturing, send_syn
from support.echo import echo, talk
from support.option import HASTY, ONLY, Server, bound, why_not, with_option

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from support.child import Child

    Spawn = Callable[..., Child]

MPTCP = 262
PADDED = OPTION + b"\1\1"


pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no BPF: {why_not()}")


@pytest.fixture(scope="module")
def source() -> Iterator[option.Source]:
    """A program of this file's own."""
    source = option.Source()
    yield source
    source._found.clear()


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch, source: option.Source) -> None:
    """A device is there, as far as the option is concerned, and nothing is remembered."""
    monkeypatch.setattr(option, "smcr_possible", lambda config: "smc-r" in config.paths)
    monkeypatch.setattr(option, "source", source)
    remembered.announced._until.clear()


async def test_both_ends_announce(host: str) -> None:
    """SYN and SYN/ACK have it with its padding, no other segment has, and a handshake follows."""
    server = Server(ONLY)
    async with server.serving(host) as target:
        with capturing(target[1]) as capture:
            assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("smc-d", None)
            segments = capture.taken()
    assert [segment.flags & (SYN | ACK) for segment in with_option(segments)] == [SYN, SYN | ACK]
    assert all(segment.options.endswith(PADDED) for segment in with_option(segments))
    assert len(segments) > 4
    assert server.reasons == [None]


async def test_both_defaults_prefer_the_rendezvous(host: str) -> None:
    server = Server(SmcConfig())
    async with server.serving(host) as target:
        with capturing(target[1]) as capture:
            assert await talk(*await smcfast.open_smc_connection(*target)) == ("smc-d", None)
            assert len(with_option(capture.taken())) == 2


async def test_a_plain_server(host: str) -> None:
    """It has seen an option that it does not know, and the application's bytes."""
    received = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readexactly(5))
        writer.write(received[0])
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    target = server.sockets[0].getsockname()[:2]
    with capturing(target[1]) as capture:
        assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("tcp", "peer_plain")
        segments = capture.taken()
    assert [segment.is_syn for segment in with_option(segments)] == [True]
    assert received == [b"hello"]
    server.close()
    await server.wait_closed()


async def test_a_plain_client_of_a_server_that_speaks_first(host: str) -> None:
    """Its SYN/ACK has no option, and it is served at once."""
    reasons = []

    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reasons.append(writer.get_extra_info("smc").reason)
        writer.write(b"220 ready")
        writer.close()

    config = SmcConfig(discovery=("option",), handshake_timeout=3600)
    server = await smcfast.start_smc_server(greet, host, 0, config=config)
    target = server.sockets[0].getsockname()[:2]
    with capturing(target[1]) as capture:
        reader, writer = await asyncio.open_connection(*target)
        assert await reader.read() == b"220 ready"
        segments = capture.taken()
    writer.close()
    await writer.wait_closed()
    assert (with_option(segments), reasons) == ([], ["peer_plain"])
    server.close()
    await server.wait_closed()


async def test_switched_off_at_one_end(host: str) -> None:
    off = SmcConfig(discovery=("rendezvous",), paths=("smc-r", "smc-d"))
    for client, listener, count in ((off, ONLY, 0), (ONLY, off, 1), (SmcConfig(paths=("smc-d",)), ONLY, 0)):
        async with Server(listener).serving(host) as target:
            with capturing(target[1]) as capture:
                assert (await talk(*await smcfast.open_smc_connection(*target, config=client)))[0] == "tcp"
                assert len(with_option(capture.taken())) == count


async def test_without_a_device_there_is_no_option(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option, "smcr_possible", lambda _: False)
    monkeypatch.setattr(option, "source", option.Source())
    server = Server(ONLY)
    async with server.serving(host) as target:
        with capturing(target[1]) as capture:
            pair = await smcfast.open_smc_connection(*target, config=ONLY)
            assert pair[1].get_extra_info("smc").fallback.text.startswith("no RDMA device is here")
            assert await talk(*pair) == ("tcp", "option_unavailable")
            assert with_option(capture.taken()) == []
    assert (server.reasons, option.source.program) == (["option_unavailable"], None)


# What others send.

ORDINARY = bytes.fromhex("020405b4")
EXPERIMENTS = {
    "the option": (PADDED, True),
    "behind others": (ORDINARY + b"\1\1" + OPTION, True),
    "none": (ORDINARY, False),
    "fast open by kind 254 whose cookie looks like it": (bytes.fromhex("fe0cf989") + OPTION + b"\0\0", False),
    "beside fast open by kind 254": (PADDED + bytes.fromhex("fe04f989"), False),
    "beside fast open": (PADDED + bytes.fromhex("22020101"), False),
    "beside multipath": (PADDED + bytes.fromhex("1e0c0001") + bytes(8), False),
    "longer": (bytes.fromhex("fe08e2d4c3d90000"), False),
    "shorter": (bytes.fromhex("fe05e2d4c3010101"), False),
    "another number": (bytes.fromhex("fe06e2d4c3c40101"), False),
    "kind 253": (bytes.fromhex("fd06e2d4c3d90101"), False),
    "behind the end of options": (bytes.fromhex("0000") + OPTION, False),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
async def test_which_syn_is_answered(host: str, name: str) -> None:
    options, is_answered = EXPERIMENTS[name]
    async with Server(ONLY).serving(host) as target:
        family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
        with capturing(target[1]) as capture:
            send_syn(family, target[0], 1, target[1], options)
            answer = capture.wait_for(SYN | ACK)
    assert (OPTION in answer.options) is is_answered


# What leaves no place.


async def test_multipath_tcp(host: str) -> None:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP).close()
    except OSError as error:
        pytest.skip(f"no Multipath TCP: {error}")
    server = Server(ONLY)
    async with server.serving(host) as target:
        with capturing(target[1]) as capture:
            pair = await smcfast.open_smc_connection(*target, proto=MPTCP, config=ONLY)
            assert await talk(*pair) == ("tcp", "option_unfit")
            assert with_option(capture.taken()) == []
    assert server.reasons == ["peer_plain"]


async def test_a_multipath_listener(host: str) -> None:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        family, address = probe.family, probe.getsockname()
    try:
        sock = socket.socket(family, socket.SOCK_STREAM, MPTCP)
    except OSError as error:
        pytest.skip(f"no Multipath TCP: {error}")
    sock.bind((address[0], 0))
    server = Server(ONLY)
    async with server.serving(sock=sock) as target:
        with capturing(target[1]) as capture:
            assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("tcp", "peer_plain")
            assert [segment.is_syn for segment in with_option(capture.taken())] == [True]
    assert server.reasons == ["option_unfit"]


# Peers that answer the option and do not speak SMC.


class Echoing:
    """A plain server whose SYN/ACKs have the option: its first connection ends in one way, the others are echoed."""

    def __init__(self, how: str) -> None:
        self._how = how
        self.first_bytes: list[bytes] = []

    @contextlib.asynccontextmanager
    async def serving(self, host: str) -> AsyncIterator[tuple[str, int]]:
        sock = bound(host)
        assert option.announce(sock) is None
        server = await asyncio.start_server(self._serve, sock=sock)
        try:
            yield sock.getsockname()[:2]
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(1000)
        self.first_bytes.append(data[:4])
        if len(self.first_bytes) > 1:
            writer.write(data)
            await echo(reader, writer)
        elif self._how == "garbage":
            writer.write(b"400 Bad Request\r\n\r\n" * 20)
        elif self._how == "repeats":
            writer.write(data)
        elif self._how == "silence":
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
        writer.close()


NUMERIC = pytest.mark.parametrize("numeric", ["127.0.0.1", "::1"])


@NUMERIC
@pytest.mark.parametrize("how", ["garbage", "repeats", "hangs up", "silence"])
async def test_a_peer_that_echoes_the_option(numeric: str, how: str) -> None:
    """A new connection without it takes its place; then the destination gets no option any more."""
    server = Echoing(how)
    async with server.serving(numeric) as target:
        with capturing(target[1]) as capture:
            assert await talk(*await smcfast.open_smc_connection(*target, config=HASTY)) == ("tcp", "handshake_failed")
            assert len(with_option(capture.taken())) == 2
            expected = ("tcp", "destination_remembered")
            assert await talk(*await smcfast.open_smc_connection(*target, config=HASTY)) == expected
            assert with_option(capture.taken()) == []
    assert server.first_bytes == [b"\xe2\xd4\xc3\xd9", b"hell", b"hell"]


async def test_the_memory_of_destinations(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lasts for 10 minutes."""
    now = 0.0
    monkeypatch.setattr(remembered.announced, "_clock", lambda: now)
    async with Echoing("garbage").serving("127.0.0.1") as target:
        await talk(*await smcfast.open_smc_connection(*target, config=HASTY))
        with capturing(target[1]) as capture:
            now = 599.0
            await talk(*await smcfast.open_smc_connection(*target, config=HASTY))
            assert with_option(capture.taken()) == []
            now = 600.0
            await talk(*await smcfast.open_smc_connection(*target, config=HASTY))
            assert len(with_option(capture.taken())) == 2


async def test_a_socket_of_the_users_own() -> None:
    """Marked before its connect; there is no way to another connection when its peer only echoes the option."""
    async with Server(ONLY).serving("127.0.0.1") as target:
        sock = socket.socket()
        assert option.announce(sock) is None
        sock.connect(target)
        assert await talk(*await smcfast.open_smc_connection(sock=sock, config=ONLY)) == ("smc-d", None)
        sock = socket.create_connection(target)
        assert await talk(*await smcfast.open_smc_connection(sock=sock, config=ONLY)) == ("tcp", "sock_given")
    async with Echoing("garbage").serving("127.0.0.1") as target:
        sock = socket.socket()
        assert option.announce(sock) is None
        sock.connect(target)
        with pytest.raises(
            SmcHandshakeError, match=r"the peer answered the TCP option, does it speak SMC\? \(handshake"
        ):
            await smcfast.open_smc_connection(sock=sock, config=ONLY)
        assert sock.fileno() == -1


@pytest.mark.parametrize("start", [b"hello", b"\xe2\xd4xx"])
async def test_a_client_that_announces_and_does_not_propose(host: str, start: bytes) -> None:
    """Its bytes are the application's."""
    server = Server(ONLY)
    async with server.serving(host) as target:
        sock = socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET)
        assert option.announce(sock) is None
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, target)
        reader, writer = await asyncio.open_connection(sock=sock)
        writer.write(start)
        assert await reader.readexactly(len(start)) == start
        writer.close()
        await writer.wait_closed()
    assert server.reasons == ["option_unanswered"]


async def test_forbidden_where_the_peer_echoes_the_option() -> None:
    config = SmcConfig(discovery=("option",), fallback="forbid")
    async with Echoing("garbage").serving("127.0.0.1") as target:
        with pytest.raises(smcfast.SmcFallbackError, match="handshake_failed"):
            await smcfast.open_smc_connection(*target, config=config)


# Signatures.


def sign(sock: socket.socket, peer: str) -> None:
    """TCP-MD5 with `peer`."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    address = socket.inet_pton(family, peer)
    place = (
        struct.pack("=HxxI", family, 0) + address
        if family == socket.AF_INET6
        else struct.pack("=Hxx", family) + address
    )
    sock.setsockopt(socket.IPPROTO_TCP, 14, place.ljust(128, b"\0") + struct.pack("=BBHI80s", 0, 0, 3, 0, b"key"))


@NUMERIC
async def test_signed_segments(numeric: str) -> None:
    listener, sock = bound(numeric), bound(numeric)
    try:
        sign(listener, numeric)
        sign(sock, numeric)
    except OSError as error:
        listener.close()
        sock.close()
        pytest.skip(f"no TCP-MD5: {error}")
    server = Server(ONLY)
    async with server.serving(sock=listener) as target:
        with capturing(target[1]) as capture:
            assert option.announce(sock) is None
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, target)
            assert await talk(*await smcfast.open_smc_connection(sock=sock, config=ONLY)) == ("tcp", "option_unfit")
            segments = capture.taken()
    assert with_option(segments) == []
    assert segments[0].is_syn
    assert bytes([19, 18]) in segments[0].options
    assert server.reasons == ["peer_plain"]


async def test_a_listener_that_has_listened_before(host: str) -> None:
    """The program cannot take it up any more, and that is the reason."""
    sock = bound(host)
    sock.listen()
    server = Server(ONLY)
    async with server.serving(sock=sock) as target:
        with capturing(target[1]) as capture:
            assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("tcp", "peer_plain")
            assert [segment.is_syn for segment in with_option(capture.taken())] == [True]
    (info,) = server.infos
    assert info.fallback == (
        reasons.reason("option_unavailable").code,
        "option_unavailable",
        "the socket was listening already when the server began",
    )
