"""Bytes in their place: readinto, views of received bytes, reservations of room; on a ring, and by copies over TCP."""

from __future__ import annotations

import array
import asyncio
import functools
import gc
from typing import TYPE_CHECKING, Any

import pytest

from support.in_place import RING, connected_by, on_ring, receive, send
from support.streams import End, Pair, pattern, turns

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    import smcfast

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


# Bytes.


async def test_what_goes_in_comes_out(connect: Connect, path: str, stream_host: str) -> None:
    data = pattern(10 * RING)
    async with connect(stream_host) as (client, server):
        sending = asyncio.create_task(send(client, data, 3000))
        assert await receive(server, len(data), 5000) == data
        await sending
        view = await asyncio.wait_for(echoed(client, server), 30)
        assert on_ring(view) == (path == "smc-d")
        view.consume()


async def echoed(client: End, server: End) -> smcfast.View:
    with await server.writer.reserve(5) as room:
        room[:] = b"hello"
        room.commit()
    view = await client.reader.view()
    assert bytes(view) == b"hello"
    return view


@pytest.mark.parametrize("spin_us", [0, 50])
async def test_any_mixture_is_exact(connect: Connect, spin_us: int, rng: random.Random) -> None:
    """Writes, reservations, dropped and half used ones; reads, views, half consumed ones, and buffers; over many rings."""
    data = pattern(100 * RING, seed=rng.randrange(1000))
    async with connect(spin_us=spin_us) as (client, server):
        sending = asyncio.create_task(send_somehow(client, data, rng))
        got = bytearray()
        while not server.reader.at_eof():
            await take_somehow(server, got, rng)
            assert data.startswith(got) if rng.random() < 0.01 else True
        await sending
        assert got == data


async def send_somehow(end: End, data: bytes, rng: random.Random) -> None:
    place = 0
    while place < len(data):
        size = min(len(data) - place, rng.choice([1, 10, 1000, RING // 2, RING, 3 * RING]))
        if rng.random() < 0.3:
            end.writer.write(data[place : place + size])
            if rng.random() < 0.5:
                await end.writer.drain()
            place += size
            continue
        least = rng.choice([1, min(8, size), size])
        with await end.writer.reserve(size, at_least=least) as room:
            assert least <= len(room) <= size
            used = rng.choice([0, 1, len(room) // 2, len(room)])
            room[:used] = data[place : place + used]
            if rng.random() < 0.9:
                room.commit(used)
                place += used
    end.writer.write_eof()


async def take_somehow(end: End, got: bytearray, rng: random.Random) -> None:
    size = rng.choice([1, 7, 100, RING // 2, RING, 4 * RING])
    method = rng.choice(["read", "readexactly", "readinto", "view", "view", "view"])
    if method == "read":
        got += await end.reader.read(size)
    elif method == "readexactly":
        try:
            got += await end.reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            got += error.partial
    elif method == "readinto":
        buffer = bytearray(size)
        count = await end.reader.readinto(buffer)
        got += buffer[:count]
    else:
        least = rng.choice([1, min(8, size), size])
        with await end.reader.view(size, at_least=least) as view:
            assert least <= len(view) <= size or len(view) < least
            used = rng.choice([0, 1, len(view) // 2, len(view)]) if len(view) else 0
            if rng.random() < 0.9:
                got += bytes(view)[:used]
                view.consume(used)


async def test_at_least_so_many_wherever_the_ring_ends(connect: Connect, path: str) -> None:
    """Seven at a time do not go into a ring: some lie around its end, and are copied."""
    data = pattern(7 * RING)
    async with connect() as (client, server):
        kinds: set[tuple[str, bool]] = set()

        async def write() -> None:
            for place in range(0, len(data), 7):
                with await client.writer.reserve(7, at_least=7) as room:
                    assert len(room) == 7
                    kinds.add(("room", on_ring(room)))
                    room[:] = data[place : place + 7]
                    room.commit()

        writing = asyncio.create_task(write())
        for place in range(0, len(data), 7):
            with await server.reader.view(7, at_least=7) as view:
                kinds.add(("view", on_ring(view)))
                assert bytes(view) == data[place : place + 7]
                view.consume()
        await writing
        both = {True, False} if path == "smc-d" else {False}
        assert kinds == {(what, where) for what in ("room", "view") for where in both}


async def test_more_than_the_ring_holds_comes_as_a_copy(connect: Connect) -> None:
    data = pattern(5 * RING)
    async with connect() as (client, server):
        room = await client.writer.reserve(len(data), at_least=len(data))
        assert len(room) == len(data)
        room[:] = data
        room.commit()
        with await server.reader.view(at_least=len(data)) as view:
            assert bytes(view) == data
            view.consume()


async def test_a_view_is_there_before_it_is_consumed_and_after_it_was_left(connect: Connect) -> None:
    async with connect() as (client, server):
        client.writer.write(b"hello world")
        with await server.reader.view(at_least=11) as view:
            assert bytes(view) == b"hello world"
        assert view.closed
        with await server.reader.view(5) as view:
            view.consume(2)
        assert await server.reader.readexactly(9) == b"llo world"


async def test_what_is_not_committed_is_not_sent(connect: Connect) -> None:
    async with connect() as (client, server):
        with await client.writer.reserve(100) as room:
            room[:4] = b"lost"
        room = await client.writer.reserve(100)
        room[:4] = b"lost"
        del room
        with await client.writer.reserve(100) as room:
            room[:4] = b"kept"
            room.commit(4)
        with await client.writer.reserve(100) as room:
            room.commit(0)
        client.writer.write_eof()
        assert await server.reader.read() == b"kept"


async def test_the_end_of_the_stream_is_an_empty_view(connect: Connect) -> None:
    async with connect() as (client, server):
        client.writer.write(b"abc")
        client.writer.write_eof()
        with await server.reader.view(100, at_least=100) as view:
            assert bytes(view) == b"abc"
            view.consume()
        for _ in range(2):
            with await server.reader.view() as view:
                assert (len(view), bytes(view)) == (0, b"")
                view.consume()
        assert await server.reader.readinto(bytearray(5)) == 0
        assert server.reader.at_eof()


# readinto.


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(5),
        lambda: memoryview(bytearray(9))[2:7],
        lambda: array.array("b", bytes(5)),
        lambda: memoryview(bytearray(5)).cast("B", (5, 1)),
        lambda: memoryview(array.array("d", [0.0])),
    ],
    ids=["bytearray", "part", "array", "two dimensions", "doubles"],
)
async def test_readinto_takes_any_buffer_that_can_be_written(make: Callable[[], Any], connect: Connect) -> None:
    async with connect() as (client, server):
        client.writer.write(b"hello")
        await server.reader.readuntil(b"h")  # on the ring the rest lies in the reader's own buffer
        buffer = make()
        assert await server.reader.readinto(buffer) == 4
        assert memoryview(buffer).tobytes().startswith(b"ello")
        client.writer.write(b"world")
        assert await server.reader.readinto(buffer) == 5
        assert memoryview(buffer).tobytes().startswith(b"world")


async def test_readinto_refuses_what_it_cannot_fill(connect: Connect) -> None:
    async with connect() as (client, server):
        client.writer.write(b"kept")
        for buffer in (b"constant", memoryview(b"constant"), "text", 5):
            with pytest.raises(TypeError):
                await server.reader.readinto(buffer)
        with pytest.raises(BufferError):
            await server.reader.readinto(memoryview(bytearray(10))[::2])
        assert await server.reader.readinto(bytearray()) == 0
        assert await server.reader.readexactly(4) == b"kept"


async def test_readinto_holds_the_buffer_while_it_waits(connect: Connect) -> None:
    async with connect(spin_us=0) as (client, server):
        buffer = bytearray(5)
        reading = asyncio.create_task(server.reader.readinto(buffer))
        await turns()
        with pytest.raises(BufferError):
            buffer.clear()
        client.writer.write(b"hello")
        assert await reading == 5
        assert buffer == b"hello"
        buffer.clear()


async def test_large_buffers_are_filled_from_the_ring_at_once(connect: Connect, path: str) -> None:
    """They are copied without the interpreter's lock."""
    data = pattern(1 << 20)
    async with connect(rmb_size=1 << 20) as (client, server):
        client.writer.write(data)
        buffer, got = bytearray(1 << 20), 0
        with memoryview(buffer) as whole:
            while got < len(data):
                got += (count := await server.reader.readinto(whole[got:]))
                assert count == len(data) or path == "tcp"
        assert buffer == data


# Buffers.


async def test_a_view_is_read_only_and_a_reservation_is_not(connect: Connect, path: str) -> None:
    async with connect() as (client, server):
        with await client.writer.reserve(8) as room:
            with memoryview(room) as buffer:
                assert (buffer.readonly, buffer.format, buffer.contiguous, buffer.nbytes) == (
                    False,
                    "B",
                    True,
                    len(room),
                )
                buffer[:8] = b"12345678"
            room.commit(8)
        with await server.reader.view(at_least=8) as view:
            with memoryview(view) as buffer:
                assert (buffer.readonly, buffer.format, buffer.nbytes) == (path == "smc-d", "B", 8)
                assert buffer.cast("Q")[0] == int.from_bytes(b"12345678", "little")
            view.consume()


async def test_numpy_works_in_place(connect: Connect) -> None:
    numpy = pytest.importorskip("numpy")
    numbers = numpy.arange(10_000, dtype="<f8")
    async with connect() as (client, server):

        async def write() -> None:
            place = 0
            while place < len(numbers):
                with await client.writer.reserve(8 * (len(numbers) - place), at_least=8) as room:
                    into = numpy.frombuffer(room, "<f8", count=len(room) // 8)
                    into[:] = numbers[place : place + len(into)]
                    place, size = place + len(into), into.nbytes
                    del into
                    room.commit(size)

        writing = asyncio.create_task(write())
        total, count = 0.0, 0
        while count < len(numbers):
            with await server.reader.view(at_least=8) as view:
                part = numpy.frombuffer(view, "<f8", count=len(view) // 8)
                total, count, size = total + float(part.sum()), count + len(part), part.nbytes
                del part
                view.consume(size)
        await writing
        assert total == float(numbers.sum())
        into = numpy.zeros(3, dtype=[("a", "<i4"), ("b", "<f8")])
        client.writer.write(bytes(range(36)))
        assert await server.reader.readinto(into) == 36
        assert into.tobytes() == bytes(range(36))


async def test_nothing_is_consumed_or_sent_while_a_buffer_is_in_use(connect: Connect) -> None:
    async with connect() as (client, server):
        room = await client.writer.reserve(4)
        buffer = memoryview(room)
        buffer[:4] = b"data"
        for end in (lambda: room.commit(4), room.close, lambda: room.__exit__(None, None, None)):
            with pytest.raises(BufferError):
                end()
        buffer.release()
        room.commit(4)
        view = await server.reader.view(at_least=4)
        buffer = memoryview(view)
        for end in (view.consume, view.close, lambda: view.__exit__(None, None, None)):
            with pytest.raises(BufferError):
                end()
        assert (bytes(buffer), view.closed) == (b"data", False)
        buffer.release()
        view.consume()
        client.writer.write(b"more")
        assert await server.reader.readexactly(4) == b"more"


async def test_an_exception_that_holds_a_buffer_is_the_one_that_is_seen(connect: Connect) -> None:
    """Its traceback keeps the buffer alive; when that is gone, the loans are over, and nothing was taken or sent."""
    async with connect() as (client, server):
        client.writer.write(b"data")
        try:
            with await server.reader.view() as view, await client.writer.reserve(4) as room:
                buffers = memoryview(view), memoryview(room)
                raise KeyError(buffers)
        except KeyError:
            for use in (server.reader.read(1), server.reader.view()):
                with pytest.raises(RuntimeError, match="a view of received bytes is open"):
                    await use
            with pytest.raises(RuntimeError, match="a reservation is open"):
                client.writer.write(b"x")
        del view, room, buffers
        gc.collect()
        client.writer.write(b"!")
        assert await server.reader.readexactly(5) == b"data!"
