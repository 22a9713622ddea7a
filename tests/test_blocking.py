"""Blocking sockets: what goes in at one end comes out at the other, as with the standard library's, on a ring and on TCP."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import pickle
import random
import socket
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, ringsocket
from smcfast.ringsocket import RingSocket
from support.addresses import port_of
from support.sockets import (
    GUARD,
    PATHS,
    RING,
    Beside,
    assert_path,
    calling,
    config_of,
    connected,
    received,
    send_for_ever,
    serving,
    sleeps,
)
from support.streams import pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from smcfast import SmcSocket
    from support.channel import Channel
    from support.child import Child

PIECES = [1, 64, 4095, 4096, 4097, RING - 1, RING, RING + 1, 2 * RING + 1, 100_000]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


def test_a_socket_is_not_copied(path: str) -> None:
    with connected("127.0.0.1", path) as (client, _):
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot pickle"):
                way(client)


def test_bytes_both_ways_and_the_end(host: str, path: str) -> None:
    with connected(host, path) as (client, server):
        client.sendall(b"hello")
        assert received(server, 5) == b"hello"
        assert server.send(memoryview(bytearray(b"world"))) == 5
        assert client.recv(100) == b"world"
        server.shutdown(socket.SHUT_WR)
        assert client.recv(1) == client.recv(1) == b""
        client.sendall(b"more")
        client.close()
        assert received(server, 100) == b"more"


def test_what_both_ends_say_of_themselves(host: str, path: str) -> None:
    with connected(host, path) as (client, server):
        assert client.getpeername() == server.getsockname()
        assert client.getsockname() == server.getpeername()
        assert client.family == server.family == (socket.AF_INET6 if ":" in host else socket.AF_INET)
        assert client.type == socket.SOCK_STREAM
        info = client.smc_info
        assert info is not None
        assert smcfast.smc_info(client) is info
        assert info.setup_us
        assert (info.reason is None) == (path == "smc-d")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    assert client.fileno() == server.fileno() == -1
    for method in (client.getsockname, client.getpeername, lambda: client.recv(1), lambda: client.sendall(b"x")):
        with pytest.raises(OSError, match="Bad file descriptor"):
            method()


def test_recv_into_takes_any_buffer(path: str) -> None:
    with connected(path=path) as (client, server):
        client.sendall(b"0123456789")
        buffer = bytearray(6)
        assert server.recv_into(buffer, 2) == 2
        assert server.recv_into(memoryview(buffer)[2:4]) == 2
        assert buffer == b"0123\0\0"
        assert server.recv_into(buffer) == 6
        assert buffer == b"456789"
        with pytest.raises(ValueError, match="too small"):
            server.recv_into(buffer, 7)
        with pytest.raises((BufferError, TypeError)):
            server.recv_into(b"read-only")
        with pytest.raises(ValueError, match="negative"):
            server.recv(-1)
        assert server.recv(0) == b""
        client.shutdown(socket.SHUT_WR)
        assert server.recv_into(buffer) == 0


def test_large_transfers_both_ways_by_two_threads_each(path: str, seed: int) -> None:
    """One thread sends while another receives, at both ends; pieces of all sizes, more than any ring holds."""
    with connected(path=path) as (client, server):
        ends = {client: (seed, seed + 1), server: (seed + 1, seed)}
        senders = [Beside(send_pieces, sock, mine) for sock, (mine, _) in ends.items()]
        readers = [Beside(digest_of_stream, sock, theirs) for sock, (_, theirs) in ends.items()]
        for sender in senders:
            sender.result()
        assert [reader.result() for reader in readers] == [digest_of(theirs) for _, theirs in ends.values()]


def test_a_large_ring_carries_more_than_is_copied_at_once() -> None:
    data = random.Random(1).randbytes(9_000_001)
    with connected(rmb_size=4 << 20) as (client, server):
        sender = Beside(client.sendall, data)
        assert received(server, len(data)) == data
        sender.result()


def test_several_threads_receive_and_every_byte_comes_once(path: str) -> None:
    """As with a socket, any thread may get any byte, and each hears of the end."""
    with connected(path=path, spin_us=0) as (client, server):
        readers = [Beside(count_to_the_end, server) for _ in range(4)]
        for _ in range(2000):
            client.sendall(b"0123456789")
        client.shutdown(socket.SHUT_WR)
        assert sum(reader.result() for reader in readers) == 20_000


def test_several_threads_send_and_nothing_is_lost(path: str) -> None:
    with connected(path=path, spin_us=0) as (client, server):
        senders = [Beside(client.sendall, bytes([number]) * 200_000) for number in range(4)]
        data = received(server, 800_000)
        for sender in senders:
            sender.result()
        assert [data.count(number) for number in range(4)] == [200_000] * 4


@pytest.mark.parametrize("mode", ["r", "w", "rw", "rb", "wb", "rwb"])
def test_files_over_the_socket(path: str, mode: str) -> None:
    with connected(path=path) as (client, server):
        with client.makefile(mode) as file:
            if "w" in mode:
                file.write(b"line\n" if "b" in mode else "line\n")
                file.flush()
                assert received(server, 5) == b"line\n"
            if "r" in mode:
                server.sendall(b"one\ntwo\nthree")
                server.shutdown(socket.SHUT_WR)
                lines = file.readlines()
                assert "".join(map(str, lines)) if "b" not in mode else b"".join(lines)
                assert len(lines) == 3


def test_an_unbuffered_file_reads_what_is_there(path: str) -> None:
    with connected(path=path) as (client, server):
        with client.makefile("rb", buffering=0) as file:
            server.sendall(b"some")
            assert file.read(100) == b"some"
            client.settimeout(0)
            assert file.read(100) is None


def test_a_file_keeps_the_socket_open(path: str) -> None:
    with connected(path=path) as (client, server):
        file = client.makefile("rb")
        client.close()
        server.sendall(b"still")
        assert file.read(5) == b"still"
        file.close()
        assert server.recv(1) == b""
        assert client.fileno() == -1


def test_shutdown_of_reading_ends_what_waits_for_bytes(path: str) -> None:
    with connected(path=path, spin_us=0) as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        reader = Beside(server.recv, 1)
        if path == "smc-d":
            sleeps(server, "stalls_received")
        server.shutdown(socket.SHUT_RD)
        assert reader.result() == b""
        server.sendall(b"the other way goes on")
        assert received(client, 21) == b"the other way goes on"


def test_nothing_can_be_sent_after_the_own_end(path: str) -> None:
    with connected(path=path) as (client, server):
        client.shutdown(socket.SHUT_RDWR)
        with pytest.raises(BrokenPipeError):
            client.sendall(b"x")
        assert server.recv(1) == b""
        with pytest.raises(OSError, match="Invalid argument"):
            client.shutdown(7)


def test_who_writes_to_a_peer_that_has_closed_hears_of_it(path: str) -> None:
    with connected(path=path) as (client, server):
        client.close()
        assert server.recv(1) == b""
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_for_ever(server, 1000)


def test_a_close_with_bytes_unread_is_a_reset(path: str) -> None:
    with connected(path=path) as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        client.sendall(b"unread")
        while server.recv(1, socket.MSG_DONTWAIT) != b"u":
            pass
        server.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_close_wakes_the_threads_that_wait_in_the_socket() -> None:
    """Which a socket of the kernel's does not; here nobody waits for what cannot come."""
    with connected(spin_us=0) as (client, server):
        waiting = [Beside(server.recv, 1), Beside(server.sendall, bytes(4 * RING))]
        sleeps(server, "stalls_received")
        sleeps(server, "stalls_sent")
        server.close()
        for one in waiting:
            with pytest.raises(OSError, match="Bad file descriptor"):
                one.result()
        assert len(received(client, 4 * RING)) == RING


def test_a_second_close_leaves_the_descriptor_to_the_first() -> None:
    """The first one still needs it, and may wait for another thread's call."""
    with connected() as (client, server):
        assert isinstance(client, RingSocket)
        channel = client._channel
        assert not isinstance(channel, ringsocket._ClosedChannel)
        close = channel.close
        begun, goes_on = threading.Event(), threading.Event()

        class Slow:
            def close(self) -> None:
                begun.set()
                assert goes_on.wait(GUARD)
                close()

        client._channel = Slow()  # type: ignore[assignment]
        first = Beside(client.close)
        assert begun.wait(GUARD)
        client.close()
        assert client._tcp.fileno() >= 0
        goes_on.set()
        first.result()
        assert client._tcp.fileno() == -1
        assert server.recv(1) == b""


def test_what_a_ring_cannot_do_is_said() -> None:
    with connected() as (client, _):
        for call in (client.detach, lambda: client.recv(1, socket.MSG_PEEK)):
            with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is compared
                call()
            assert caught.value.errno == 95
        with pytest.raises(OSError, match="MemoryBIO"):
            client.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)


def test_who_forgets_to_close_is_told() -> None:
    with serving() as listener:
        client = calling(listener)
        server, _ = listener.accept()
        with pytest.warns(ResourceWarning, match="unclosed <RingSocket smc-d"):
            del client
        assert server.recv(1) == b"", "and it is closed"
        server.close()
    forgotten = serving()
    with pytest.warns(ResourceWarning, match="unclosed <SmcListener"):
        del forgotten


def test_the_reason_for_tcp_is_that_of_the_paths() -> None:
    config = SmcConfig(paths=("smc-r",))
    with smcfast.create_server(("127.0.0.1", 0), config=config) as listener:
        client = smcfast.create_connection(listener.getsockname(), config=config)
        server, _ = listener.accept()
        for sock in (client, server):
            info = sock.smc_info
            assert info is not None
            assert info.fallback is not None
            assert (info.reason, "smc-d alone" in info.fallback.text) == ("disabled", True)
            sock.close()
    with pytest.raises(smcfast.SmcFallbackError):
        smcfast.create_server(("127.0.0.1", 0), config=SmcConfig(paths=("smc-r",), fallback="forbid"))


def test_a_plain_client_and_a_plain_server_are_met_on_tcp() -> None:
    with serving(path="smc-d") as listener:
        pass
    with smcfast.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as plain:
        server, address = listener.accept()
        with server:
            assert address == plain.getsockname()
            assert_path(server, "tcp")
            plain.sendall(b"x")
            assert server.recv(1) == b"x"
    with socket.create_server(("127.0.0.1", 0)) as plain_listener:
        with smcfast.create_connection(plain_listener.getsockname()) as client:
            assert_path(client, "tcp")
            assert client.smc_info is not None
            assert client.smc_info.reason == "peer_plain"
        with pytest.raises(smcfast.SmcFallbackError):
            smcfast.create_connection(plain_listener.getsockname(), config=config_of("smc-d"))


def test_they_are_counted_and_shown() -> None:
    before = smcfast.stats()["connections"]["smc-d"]
    with connected() as (client, server):
        client.sendall(b"123")
        assert received(server, 3) == b"123"
        assert smcfast.stats()["connections"]["smc-d"] == before + 2
        from smcfast import page, status

        own = page.page()
        assert own is not None
        shown = status._page(own.read())
        rows = [row for row in shown.connections if row.local in {client.getsockname()[:2], server.getsockname()[:2]}]
        assert {(row.role, row.path) for row in rows} == {("client", "smc-d"), ("server", "smc-d")}
        assert client.smc_info is not None
        assert client.smc_info.counters["bytes_sent"] == 3


def test_the_arguments_are_those_of_the_standard_library(host: str) -> None:
    with serving(host) as listener:
        client = smcfast.create_connection(
            (host, listener.getsockname()[1]), timeout=5, source_address=(listener.getsockname()[0], 0)
        )
        assert client.gettimeout() == 5
        server, _ = listener.accept()
        assert server.gettimeout() is None
        client.close()
        server.close()
        address = listener.getsockname()[:2]
    with pytest.raises(ConnectionRefusedError):
        smcfast.create_connection(address)
    with pytest.raises(ExceptionGroup) as caught:
        smcfast.create_connection(address, all_errors=True)
    assert isinstance(caught.value.exceptions[0], ConnectionRefusedError)


# With an event loop at the other end.


async def test_an_asyncio_client_meets_a_blocking_server(host: str) -> None:
    with serving(host) as listener:
        reader, writer = await smcfast.open_smc_connection(host, listener.getsockname()[1], config=config_of("smc-d"))
        server, _ = listener.accept()
        with server:
            assert writer.get_extra_info("smc").path == "smc-d"
            assert_path(server, "smc-d")
            writer.write(pattern(100_000))
            got = asyncio.get_running_loop().run_in_executor(None, received, server, 100_000)
            await writer.drain()
            assert await got == pattern(100_000)
            await asyncio.get_running_loop().run_in_executor(None, server.sendall, b"bye")
            server.close()
            assert await reader.read() == b"bye"
        writer.close()
        await writer.wait_closed()


async def test_a_blocking_client_meets_an_asyncio_server(host: str) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert writer.get_extra_info("smc").path == "smc-d"
        while data := await reader.read(10_000):
            writer.write(data)
            await writer.drain()
        writer.close()

    def talk(port: int) -> bytes:
        with smcfast.create_connection((host, port), 30, config=config_of("smc-d")) as client:
            assert_path(client, "smc-d")
            sender = Beside(client.sendall, pattern(100_000))
            data = received(client, 100_000)
            sender.result()
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
            return data

    async with await smcfast.start_smc_server(echo, host, 0, config=config_of("smc-d")) as server:
        data = await asyncio.get_running_loop().run_in_executor(None, talk, port_of(server.sockets))
    assert data == pattern(100_000)


# In two processes.


def serve_pieces(parent: Channel, host: str, path: str, spin_us: int, mine: int, theirs: int) -> str:
    with serving(host, path, spin_us=spin_us) as listener:
        parent.send(listener.getsockname()[1])
        server, _ = listener.accept()
        with server:
            assert_path(server, path)
            sender = Beside(send_pieces, server, mine)
            digest = digest_of_stream(server, theirs)
            sender.result()
            return digest


@pytest.mark.parametrize("spin_us", [0, 50])
def test_random_data_both_ways_between_two_processes(
    spawn: Callable[..., Child], host: str, path: str, spin_us: int, seed: int
) -> None:
    child = spawn(serve_pieces, host, path, spin_us, seed, seed + 1)
    port = child.receive()
    with smcfast.create_connection((host, port), 30, config=config_of(path, spin_us=spin_us)) as client:
        assert_path(client, path)
        sender = Beside(send_pieces, client, seed + 1)
        assert digest_of_stream(client, seed) == digest_of(seed)
        sender.result()
        assert child.result() == digest_of(seed + 1)


def pieces_of(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size) for size in rng.sample(PIECES * 5, 5 * len(PIECES))]


def send_pieces(sock: SmcSocket, seed: int) -> None:
    """By `sendall` and by `send`, then the end."""
    for number, piece in enumerate(pieces_of(seed)):
        if number % 2:
            sock.sendall(piece)
            continue
        while piece:
            piece = piece[sock.send(piece) :]
    sock.shutdown(socket.SHUT_WR)


def digest_of_stream(sock: SmcSocket, seed: int) -> str:
    digest = hashlib.sha256()
    rng = random.Random(seed)
    buffer = bytearray(100_000)
    while True:
        if rng.random() < 0.5:
            data: Any = sock.recv(rng.choice(PIECES))
        else:
            data = memoryview(buffer)[: sock.recv_into(buffer, rng.choice(PIECES))]
        if not data:
            return digest.hexdigest()
        digest.update(data)


def digest_of(seed: int) -> str:
    return hashlib.sha256(b"".join(pieces_of(seed))).hexdigest()


def count_to_the_end(sock: SmcSocket) -> int:
    count = 0
    while data := sock.recv(7):
        count += len(data)
    return count


def test_that_a_ring_is_used_where_nothing_is_configured() -> None:
    with smcfast.create_server(("127.0.0.1", 0)) as listener:
        with smcfast.create_connection(listener.getsockname()) as client:
            assert isinstance(client, RingSocket)
            assert repr(client).startswith("<RingSocket smc-d laddr=")
        with warnings.catch_warnings():
            assert repr(client) == "<RingSocket closed>"
