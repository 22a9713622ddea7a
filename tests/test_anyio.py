"""The adapter for anyio, held to what anyio's own TCP streams do: each expectation is tried on them too."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import checkpoint
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.stapled import StapledByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

import smcfast
from smcfast.contrib.anyio import SmcAttribute, connect_smc, create_smc_listener
from support import tls
from support.addresses import refusing, why_unusable
from support.anyio import KINDS, OURS, accept, connect, family_of, in_task, joined, listen, one, received, rest
from support.streams import PATTERN, eventually, pattern

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

BIG = pattern(1_000_001) * 20
"""More than a ring, or the buffers of TCP on the loopback device, can hold."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=OURS)
def path(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["127.0.0.1", "::1"])
def number(request: pytest.FixtureRequest) -> str:
    host: str = request.param
    if reason := why_unusable(host):
        pytest.skip(reason)
    return host


async def again_and_again(call: Callable[[], Awaitable[Any]]) -> None:
    """Until it raises."""
    while True:
        await call()


async def yields(call: Awaitable[Any]) -> bool:
    """Does the loop have a turn while `call` is awaited?"""
    turns: list[bool] = []
    asyncio.get_running_loop().call_soon(turns.append, True)
    await call
    return bool(turns)


# Attributes.


async def test_the_attributes_of_a_stream(kind: str, number: str) -> None:
    async with joined(kind, number) as (client, server):
        sock = client.extra(SocketAttribute.raw_socket)
        assert isinstance(client, ByteStream)
        assert client.extra(SocketAttribute.family) == family_of(number)
        assert client.extra(SocketAttribute.local_address) == sock.getsockname()[:2]
        assert client.extra(SocketAttribute.local_port) == sock.getsockname()[1]
        assert client.extra(SocketAttribute.remote_address) == server.extra(SocketAttribute.local_address)
        assert client.extra(SocketAttribute.remote_port) == server.extra(SocketAttribute.local_port)
        assert server.extra(SocketAttribute.remote_address) == client.extra(SocketAttribute.local_address)
        assert sock.gettimeout() == 0


async def test_the_info_of_a_stream_is_an_attribute_at_both_ends(path: str) -> None:
    async with joined(path, "127.0.0.1") as ends:
        for stream in ends:
            info = stream.extra(SmcAttribute.smc_info)
            assert isinstance(info, smcfast.SmcInfo)
            assert (info.path, info.reason) == (path, None if path == "smc-d" else "disabled")


async def test_the_attributes_of_a_stream_outlive_it(path: str) -> None:
    async with joined(path, "127.0.0.1") as (client, _):
        before = [client.extra(each) for each in (SmcAttribute.smc_info, SocketAttribute.remote_address)]
        await client.aclose()
        assert [client.extra(each) for each in (SmcAttribute.smc_info, SocketAttribute.remote_address)] == before


# Bytes.


async def test_what_is_sent_is_received(kind: str, number: str) -> None:
    async with joined(kind, number) as (client, server):
        await client.send(b"blah")
        assert await server.receive() == b"blah"
        await server.send(b"halb")
        assert await client.receive(3) == b"hal"
        assert await client.receive(100) == b"b"


@pytest.mark.parametrize("size", [0, -1])
async def test_a_receive_of_nothing_is_refused(kind: str, size: int) -> None:
    async with joined(kind, "127.0.0.1") as (client, _):
        with pytest.raises(ValueError, match="positive"):
            await client.receive(size)


async def test_a_send_larger_than_all_buffers_arrives(kind: str, number: str) -> None:
    async with joined(kind, number) as (client, server), anyio.create_task_group() as group:
        group.start_soon(client.send, BIG)
        assert await received(server, len(BIG)) == BIG


async def test_a_send_is_done_only_when_nothing_waits(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, server), anyio.create_task_group() as group:
        sent: list[Any] = []
        group.start_soon(in_task, lambda: client.send(BIG), sent)
        await anyio.wait_all_tasks_blocked()
        assert sent == []
        assert await received(server, len(BIG)) == BIG
        await eventually(lambda: sent == [None])


async def test_nothing_waits_behind_any_send(path: str) -> None:
    """Not even as little as a transport lets wait before it pauses its writer."""
    async with joined(path, "127.0.0.1") as (client, _):
        with anyio.move_on_after(0.2) as scope:
            while True:
                await client.send(b"x" * 10_000)
                assert client._transport.get_write_buffer_size() == 0
        assert scope.cancelled_caught


async def test_the_end_of_one_direction_leaves_the_other(kind: str, number: str) -> None:
    async with joined(kind, number) as (client, server):
        await client.send(b"hello, ")
        await client.send(b"world")
        await client.send_eof()
        assert await rest(server) == b"hello, world"
        await server.send(b"answer")
        assert await client.receive() == b"answer"


async def test_the_end_of_a_stream_stays(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, server):
        await client.aclose()
        for _ in range(3):
            with pytest.raises(anyio.EndOfStream):
                await server.receive()


async def test_a_second_end_is_nothing(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, server):
        await client.send_eof()
        await client.send_eof()
        assert await rest(server) == b""
        await client.aclose()
        if kind != "anyio":  # whose own minds on uvloop
            await client.send_eof()


async def test_nothing_is_sent_behind_the_own_end(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, _):
        await client.send_eof()
        with pytest.raises(RuntimeError, match="eof"):
            await client.send(b"more")


async def test_iteration_gives_pieces_until_the_end(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, server):
        await client.send(b"bl")
        pieces = []
        async for piece in server:
            pieces.append(piece)
            if len(pieces) == 1:
                await client.send(b"ah")
                await client.aclose()
        assert pieces == [b"bl", b"ah"]


# Connecting.


async def test_nobody_listens(kind: str, number: str) -> None:
    with refusing(number) as port, pytest.raises(OSError) as caught:  # noqa: PT011 - their words differ
        await connect(kind, number, port)
    assert isinstance(caught.value if kind != "anyio" else caught.value.__cause__, ConnectionRefusedError)


async def test_a_name_with_two_addresses_is_tried_at_both(
    kind: str, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def both(_: object, host: Any, port: Any, **__: Any) -> list[Any]:
        assert host in ("two.example", b"two.example")
        addresses = (("::1", port, 0, 0), ("127.0.0.1", port))
        return [(family_of(each[0]), socket.SOCK_STREAM, socket.IPPROTO_TCP, "", each) for each in addresses]

    async with await listen(kind, number) as listener:
        port = listener.extra(SocketAttribute.local_port)
        monkeypatch.setattr(type(asyncio.get_running_loop()), "getaddrinfo", both)
        async with await connect(kind, "two.example", port) as client:
            monkeypatch.undo()
            assert client.extra(SocketAttribute.remote_address)[0] == number


async def test_the_own_address_is_chosen(kind: str) -> None:
    async with await listen(kind, "127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
        with refusing("127.0.0.1") as free:
            pass
        async with await connect(kind, "127.0.0.1", port, local_host="127.0.0.1", local_port=free) as client:
            assert client.extra(SocketAttribute.local_port) == free


async def test_tcp_is_forbidden() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as plain:
        with pytest.raises(smcfast.SmcFallbackError):
            await connect_smc(
                "127.0.0.1", plain.extra(SocketAttribute.local_port), config=smcfast.SmcConfig(fallback="forbid")
            )


async def test_a_plain_peer_is_served_and_met_by_tcp() -> None:
    async with await create_smc_listener(local_host="127.0.0.1") as listener:
        async with await anyio.connect_tcp("127.0.0.1", listener.extra(SocketAttribute.local_port)) as client:
            async with await listener.accept() as server:
                assert server.extra(SmcAttribute.smc_info).reason == "peer_plain"
                await client.send(b"x")
                assert await server.receive() == b"x"


async def test_a_connect_cancelled_at_any_turn_leaves_nothing(path: str, nothing_is_left: None) -> None:
    loop = asyncio.get_running_loop()

    def cancel_after(turns: int, scope: anyio.CancelScope) -> None:
        if turns:
            loop.call_soon(cancel_after, turns - 1, scope)
        else:
            scope.cancel()

    async def close_at_once(stream: Any) -> None:
        await stream.aclose()

    async with await listen(path, "127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, close_at_once)
        for turns in range(25):
            with anyio.CancelScope() as scope:
                cancel_after(turns, scope)
                stream = await connect(path, "127.0.0.1", listener.extra(SocketAttribute.local_port))
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
        group.cancel_scope.cancel()
    for _ in range(50):
        await asyncio.sleep(0)


# One task for each direction.


async def test_two_tasks_cannot_receive(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, server), anyio.create_task_group() as group:
        first: list[Any] = []
        group.start_soon(in_task, client.receive, first)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError, match="reading from"):
            await client.receive()
        await server.send(b"x")
        await eventually(lambda: first == [b"x"])


async def test_two_tasks_cannot_send(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, server), anyio.create_task_group() as group:
        group.start_soon(client.send, BIG)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError, match="writing to"):
            await client.send(b"more")
        assert await received(server, len(BIG)) == BIG


# The end.


async def test_a_close_ends_the_own_receive(kind: str, number: str) -> None:
    async with joined(kind, number) as (client, _), anyio.create_task_group() as group:
        result: list[Any] = []
        group.start_soon(in_task, client.receive, result)
        await anyio.wait_all_tasks_blocked()
        await client.aclose()
        await eventually(lambda: bool(result))
        assert isinstance(result[0], anyio.ClosedResourceError)


async def test_a_close_ends_the_own_send(kind: str, number: str) -> None:
    async with joined(kind, number) as (client, _), anyio.create_task_group() as group:
        result: list[Any] = []
        group.start_soon(in_task, lambda: client.send(BIG), result)
        await anyio.wait_all_tasks_blocked()
        await client.aclose()
        await eventually(lambda: bool(result))
        assert isinstance(result[0], anyio.ClosedResourceError)


async def test_a_closed_stream_refuses(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, _):
        await client.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await client.receive()
        with pytest.raises(anyio.ClosedResourceError):
            await client.send(b"x")
        await client.aclose()


async def test_all_that_was_sent_arrives_before_the_end(kind: str, number: str) -> None:
    async with joined(kind, number) as (client, server):
        await client.send(PATTERN)
        await client.aclose()
        assert await rest(server) == PATTERN


async def test_a_send_to_a_peer_that_has_closed_fails(kind: str, number: str) -> None:
    async with joined(kind, number) as (client, server):
        await server.aclose()
        with pytest.raises(anyio.BrokenResourceError):
            await again_and_again(lambda: client.send(b"foo"))


async def test_a_lost_connection_is_broken_behind_what_had_come(kind: str, number: str) -> None:
    """The peer sends, and is gone with a reset: its socket is closed by force, or its memory says so."""
    async with joined(kind, number) as (client, server):
        await server.send(b"last words")
        assert await client.receive(4) == b"last"
        if kind == "smc-d":
            server._transport.abort()
        else:
            linger = struct.pack("=ii", 1, 0)
            server.extra(SocketAttribute.raw_socket).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await server.aclose()
        if kind == "tcp":  # the reset is here before anybody asks
            await eventually(lambda: client._reader.exception() is not None)
        if kind != "anyio":  # which leaves to the kernel what it had not asked for, and there it is lost
            assert await client.receive() == b" words"
        with pytest.raises(anyio.BrokenResourceError):
            await again_and_again(client.receive)
        with pytest.raises(anyio.BrokenResourceError):
            await again_and_again(lambda: client.send(b"x"))


async def test_a_close_with_bytes_that_wait_is_a_reset(path: str) -> None:
    """A send was given up: the stream is cut, and must not look as if it had ended."""
    async with joined(path, "127.0.0.1") as (client, server):
        with anyio.move_on_after(0.01):
            await client.send(BIG)
        await client.aclose()
        if path == "smc-d":
            with pytest.raises(anyio.BrokenResourceError):
                await rest(server)
        else:  # as anyio's own: the kernel sends what it has got, and an end
            assert BIG.startswith(await rest(server))


async def test_nothing_is_left_behind(path: str, nothing_is_left: None) -> None:
    async with joined(path, "127.0.0.1") as (client, server):
        await client.send(b"x")
        assert await server.receive() == b"x"
        await server.aclose()
    gc.collect()


async def test_a_stream_that_nobody_closes_is_noticed(path: str) -> None:
    async with await listen(path, "127.0.0.1") as listener:
        client = await connect(path, "127.0.0.1", listener.extra(SocketAttribute.local_port))
        async with await accept(path, listener) as server:
            with pytest.warns(ResourceWarning, match="unclosed"):  # noqa: PT031
                del client
                gc.collect()
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await server.receive()


# Turns of the loop, and cancellation.


async def test_every_call_gives_the_loop_a_turn(kind: str) -> None:
    async with await listen(kind, "127.0.0.1") as listener:
        client = await connect(kind, "127.0.0.1", listener.extra(SocketAttribute.local_port))
        if kind != "anyio":
            await eventually(lambda: listener._waiting._get.statistics().current_buffer_used == 1)
        streams: list[Any] = []

        async def accept() -> None:
            streams.append(await one(listener).accept())

        assert await yields(accept())
        (server,) = streams
        assert await yields(client.send(b"abcdef"))
        assert await server.receive(1) == b"a"
        assert await yields(server.receive(1))
        if kind != "anyio":  # whose own does not
            assert await yields(client.send_eof())
        assert await yields(client.aclose())
        assert await yields(client.aclose())
        assert await server.receive() == b"cdef"
        with contextlib.suppress(anyio.EndOfStream):
            await server.receive()
        ended: list[Any] = []
        assert await yields(in_task(server.receive, ended))
        assert isinstance(ended[0], anyio.EndOfStream)
        assert await yields(server.aclose())
    assert await yields(one(listener).aclose())


async def test_a_call_in_a_cancelled_scope_does_nothing(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, server):
        await server.send(b"x")
        with anyio.CancelScope() as scope:
            scope.cancel()
            if kind == "anyio":  # which may have it before the scope has its turn
                await checkpoint()
            await client.receive()
        assert scope.cancelled_caught
        assert await client.receive() == b"x"
        with anyio.CancelScope() as scope:
            scope.cancel()
            await client.send(b"never")
        assert scope.cancelled_caught
        await client.send_eof()
        assert await rest(server) == b""


async def test_a_receive_times_out_and_takes_nothing(kind: str, number: str) -> None:
    async with joined(kind, number) as (client, server):
        with anyio.move_on_after(0.01) as scope:
            await client.receive()
        assert scope.cancelled_caught
        await server.send(b"later")
        assert await client.receive() == b"later"


async def test_receives_cancelled_at_any_turn_lose_no_byte(kind: str, number: str, rng: random.Random) -> None:
    loop = asyncio.get_running_loop()
    async with joined(kind, number) as (client, server), anyio.create_task_group() as group:

        async def send() -> None:
            left = PATTERN
            while left:
                size = rng.randrange(1, 3000)
                await server.send(left[:size])
                left = left[size:]
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            await server.aclose()

        def cancel_after(turns: int, scope: anyio.CancelScope) -> None:
            if turns:
                loop.call_soon(cancel_after, turns - 1, scope)
            else:
                scope.cancel()

        group.start_soon(send)
        data = bytearray()

        async def receive_or_be_cancelled() -> None:
            with anyio.CancelScope() as scope:
                cancel_after(rng.randrange(8), scope)
                data.extend(await client.receive(rng.randrange(1, 5000)))

        with pytest.raises(anyio.EndOfStream):
            await again_and_again(receive_or_be_cancelled)
        assert data == PATTERN


async def test_a_send_that_is_cancelled_while_bytes_wait_sends_all(path: str, number: str) -> None:
    """With anyio's own nothing may wait: it reads ahead without a bound until its first wait is over."""
    async with joined(path, number) as (client, server):
        with anyio.move_on_after(0.01) as scope:
            await client.send(BIG)
        assert scope.cancelled_caught
        async with anyio.create_task_group() as group:
            group.start_soon(client.send, b"and more")
            assert await received(server, len(BIG) + 8) == BIG + b"and more"


# What stands on streams.


async def test_tls_on_top(kind: str, number: str) -> None:
    async with joined(kind, number) as (client, server), anyio.create_task_group() as group:
        wrapped: list[Any] = []

        async def wrap() -> None:
            wrapped.append(await TLSStream.wrap(server, server_side=True, ssl_context=tls.server_context()))

        group.start_soon(wrap)
        secure = await TLSStream.wrap(client, hostname="localhost", ssl_context=tls.client_context())
        await eventually(lambda: bool(wrapped))
        assert secure.extra(TLSAttribute.tls_version) == "TLSv1.3"
        assert secure.extra(SocketAttribute.remote_port) == server.extra(SocketAttribute.local_port)
        group.start_soon(secure.send, PATTERN)
        assert await received(wrapped[0], len(PATTERN)) == PATTERN
        group.start_soon(secure.aclose)
        assert await rest(wrapped[0]) == b""
        await wrapped[0].aclose()


async def test_tls_that_is_not_trusted(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, server), anyio.create_task_group() as group:
        failed: list[Any] = []
        context = tls.server_context()
        group.start_soon(in_task, lambda: TLSStream.wrap(server, server_side=True, ssl_context=context), failed)
        with pytest.raises(ssl.SSLCertVerificationError):
            await TLSStream.wrap(client, hostname="localhost", ssl_context=ssl.create_default_context())
        await client.aclose()
        await eventually(lambda: bool(failed))
        assert isinstance(failed[0], (ssl.SSLError, anyio.BrokenResourceError))


async def test_buffered_on_top(kind: str) -> None:
    async with joined(kind, "127.0.0.1") as (client, server):
        buffered = BufferedByteReceiveStream(server)
        await client.send(b"one\ntwo")
        assert await buffered.receive_until(b"\n", 100) == b"one"
        await client.send(b"three")
        assert await buffered.receive_exactly(8) == b"twothree"
        await client.aclose()
        with pytest.raises(anyio.IncompleteRead):
            await buffered.receive_exactly(1)


async def test_stapled_on_top(kind: str) -> None:
    """Out by one connection, in by another one."""
    async with joined(kind, "127.0.0.1") as (out, far_in), joined(kind, "127.0.0.1") as (back, far_out):
        stapled = StapledByteStream(out, back)
        await stapled.send(b"there")
        assert await far_in.receive() == b"there"
        await far_out.send(b"back")
        assert await stapled.receive() == b"back"
        await stapled.aclose()
        assert await rest(far_in) == b""


# What anyio runs on.


def test_trio_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match='backend="asyncio"'):
            await connect_smc("127.0.0.1", 1)
        with pytest.raises(RuntimeError, match='backend="asyncio"'):
            await create_smc_listener(local_host="127.0.0.1")

    anyio.run(main, backend="trio")


async def test_trio_as_a_guest_is_refused() -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    async def main() -> None:
        with pytest.raises(RuntimeError, match='backend="asyncio"'):
            await connect_smc("127.0.0.1", 1)

    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=done.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    (await done).unwrap()


@pytest.mark.parametrize("use_uvloop", [False, True])
def test_anyio_runs_it(path: str, use_uvloop: bool) -> None:
    async def main() -> None:
        async with joined(path, "127.0.0.1") as (client, server):
            await client.send(b"x")
            assert await server.receive() == b"x"

    anyio.run(main, backend_options={"use_uvloop": use_uvloop})


def test_anyio_is_imported_by_its_adapter_alone(run_python: Callable[..., Any]) -> None:
    code = (
        "import sys, smcfast; assert not {'anyio', 'smcfast.contrib'} & set(sys.modules); import smcfast.contrib.anyio"
    )
    done = run_python("-W", "error", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
