"""Views and reservations when a connection ends, by whatever way, in a forked child, and where TLS begins."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import ssl
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig
from support import tls
from support.in_place import RING, connected_by, receive, send
from support.process import in_a_child
from support.streams import End, Pair, connected, eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from support.channel import Channel
    from support.child import Child

    Connect = Callable[..., AbstractAsyncContextManager[Pair]]


@pytest.fixture(params=["smc-d", "tcp"])
def path(request: pytest.FixtureRequest) -> str:
    """Where the bytes go."""
    taken: str = request.param
    return taken


@pytest.fixture
def connect(path: str) -> Connect:
    """`connect(host)`: both ends of a connection that takes the path."""
    return functools.partial(connected_by, path)


# The.


async def test_a_close_ends_both_and_their_bytes_stay_mapped(path: str, connect: Connect) -> None:
    async with connect() as (client, server):
        server.writer.write(b"data")
        view, room = await client.reader.view(), await client.writer.reserve(100)
        seen, place = memoryview(view), memoryview(room)
        client.writer.close()
        await client.closed()
        await server.reader.read()
        server.writer.close()
        await server.closed()
        assert bytes(seen) == b"data"
        place[:] = bytes(100)
        seen.release()
        place.release()
        if path == "tcp":
            with contextlib.suppress(RuntimeError):  # uvloop's word for it; asyncio drops what is written then
                room.commit()
        else:
            with pytest.raises(ConnectionResetError):
                room.commit()
            with pytest.raises(ValueError, match="the connection was closed"):
                view.consume()
            # As with TCP, what was there can still be read.
            assert await client.reader.read() == b"data"


@pytest.mark.parametrize("ending", ["close", "abort", "drop"])
def test_buffers_outlive_connection_loop_and_all(ending: str, run: Callable[..., Any]) -> None:
    kept: list[memoryview] = []

    async def borrow() -> None:
        async with connected(config=SmcConfig(rmb_size=RING)) as (client, server):
            client.writer.write(b"data")
            kept.append(memoryview(await server.reader.view()))
            kept.append(memoryview(await server.writer.reserve(100)))
            if ending != "drop":
                getattr(server.writer.transport, ending)()
                client.writer.transport.abort()

    run(borrow)
    gc.collect()
    seen, place = kept
    assert len(bytes(seen)) == 4
    place[:] = bytes(range(100))
    assert bytes(place) == bytes(range(100))
    kept.clear()
    del seen, place
    gc.collect()


async def talker(parent: Channel, port: int) -> None:
    """A peer: sends, and waits to be killed."""
    _, writer = await smcfast.open_smc_connection("127.0.0.1", port, config=SmcConfig(rmb_size=RING))
    assert writer.get_extra_info("smc").path == "smc-d"
    writer.write(pattern(1000))
    parent.send("sent")
    await parent.areceive(60)


async def test_a_peer_that_is_killed_takes_no_bytes_along(spawn: Callable[..., Child], loop_kind: str) -> None:
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    server = await smcfast.start_smc_server(
        lambda *pair: arrived.set_result(End(*pair)), "127.0.0.1", 0, config=SmcConfig(rmb_size=RING)
    )
    child = spawn(talker, server.sockets[0].getsockname()[1], loop=loop_kind)
    assert await child.areceive() == "sent"
    end = await arrived
    assert end.info.path == "smc-d"
    view, room = await end.reader.view(at_least=1000), await end.writer.reserve(100)
    seen, place = memoryview(view), memoryview(room)
    child.kill()
    await end.closed()
    gc.collect()
    assert bytes(seen) == pattern(1000)
    place[:] = bytes(100)
    seen.release()
    place.release()
    with pytest.raises(ConnectionResetError):
        room.commit()
    del room
    end.writer.close()
    server.close()
    await server.wait_closed()


async def test_a_peer_that_is_killed_leaves_what_was_not_consumed(spawn: Callable[..., Child], loop_kind: str) -> None:
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    server = await smcfast.start_smc_server(
        lambda *pair: arrived.set_result(End(*pair)), "127.0.0.1", 0, config=SmcConfig(rmb_size=RING)
    )
    child = spawn(talker, server.sockets[0].getsockname()[1], loop=loop_kind)
    assert await child.areceive() == "sent"
    end = await arrived
    child.kill()
    await eventually(lambda: end.reader._endpoint.broken)  # type: ignore[attr-defined]
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while True:
            with await end.reader.view(300) as view:
                got += bytes(view)
                view.consume()
    assert got == pattern(1000)
    with pytest.raises(ConnectionResetError):
        await end.reader.readinto(bytearray(1))
    with pytest.raises(ConnectionResetError):
        await end.writer.reserve(1)
    end.writer.close()
    server.close()
    await server.wait_closed()


async def test_a_forked_child_has_the_bytes_and_nothing_else() -> None:
    async with connected(config=SmcConfig(rmb_size=RING)) as (client, server):
        client.writer.write(b"data")
        view, room = await server.reader.view(), await client.writer.reserve(4)
        seen, place = memoryview(view), memoryview(room)

        def child() -> None:
            nonlocal view, room
            assert bytes(seen) == b"data"
            place[:] = b"back"  # the parent's own account, as with any shared memory
            seen.release()
            place.release()
            for call in (view.consume, view.close, room.commit, room.close):
                with pytest.raises(RuntimeError, match="process that forked"):
                    call()
            for waiting in (server.reader.view(), client.writer.reserve(1), server.reader.readinto(bytearray(1))):
                with pytest.raises(RuntimeError, match="process that forked"):
                    waiting.send(None)
            view = room = None
            gc.collect()

        assert in_a_child(child) == ""
        seen.release()
        place.release()
        room.commit()
        view.consume()
        assert await server.reader.readexactly(4) == b"back"
        # When nothing is lent any more, nothing is inherited.
        assert in_a_child(has_no_mapping) == ""


def has_no_mapping() -> None:
    with open("/proc/self/maps") as maps:
        assert "/memfd:smcfast " not in maps.read()


async def test_a_child_that_only_drops_them_harms_nobody(connect: Connect) -> None:
    async with connect() as (client, server):
        client.writer.write(b"data")
        loans: list[Any] = [await server.reader.view(at_least=4), await client.writer.reserve(4)]

        def child() -> None:
            loans.clear()
            gc.collect()

        assert in_a_child(child) == ""
        view, room = loans
        room[:] = b"more"
        room.commit()
        view.consume()
        assert await server.reader.readexactly(4) == b"more"


# TLS.


async def test_tls_has_the_same_by_copies() -> None:
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    server = await smcfast.start_smc_server(
        lambda *pair: arrived.set_result(End(*pair)), "127.0.0.1", 0, ssl=tls.server_context()
    )
    streams = await smcfast.open_smc_connection(*server.sockets[0].getsockname()[:2], ssl=tls.client_context())
    client, end = End(*streams), await arrived
    assert client.info.path == "smc-d"
    data = pattern(100_000)
    sending = asyncio.create_task(send(client, data))
    assert await receive(end, len(data)) == data
    await sending
    buffer = bytearray(5)
    end.writer.write(b"hello")
    assert await client.reader.readinto(buffer) == 5
    assert buffer == b"hello"
    for one in (client, end):
        one.writer.close()
        with contextlib.suppress(ConnectionError):
            await one.writer.wait_closed()
    server.close()
    await server.wait_closed()


async def test_tls_does_not_begin_under_a_loan() -> None:
    context = ssl.create_default_context()
    async with connected() as (client, server):
        client.writer.write(b"data")
        view = await server.reader.view()
        with pytest.raises(RuntimeError, match="a view of received bytes is open"):
            await server.writer.start_tls(context)
        with pytest.raises(RuntimeError, match="a view of received bytes is open"):
            server.writer.transport.set_protocol(asyncio.Protocol())
        view.consume()
        room = await client.writer.reserve(1)
        with pytest.raises(RuntimeError, match="a reservation is open"):
            await client.writer.start_tls(context)
        room.close()
