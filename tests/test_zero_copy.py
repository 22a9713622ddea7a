"""Bytes in their place: readinto, views of received bytes, reservations of room; on a ring, and by copies over TCP."""

from __future__ import annotations

import array
import asyncio
import contextlib
import gc
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig
from smcfast.loans import CopiedReservation, CopiedView
from support import tls
from support.interrupt import cancelled_at
from support.process import in_a_child
from support.streams import End, Pair, connected, eventually, pattern, turns

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from support.channel import Channel
    from support.child import Child

    Connect = Callable[..., AbstractAsyncContextManager[Pair]]

RING = 16 * 1024


@pytest.fixture(params=["smc-d", "tcp"])
def path(request: pytest.FixtureRequest) -> str:
    """Where the bytes go."""
    taken: str = request.param
    return taken


@pytest.fixture
def connect(path: str) -> Connect:
    """`connect(host)`: both ends of a connection that takes the path."""

    @contextlib.asynccontextmanager
    async def connect(host: str = "127.0.0.1", **settings: Any) -> AsyncIterator[Pair]:
        settings = {"rmb_size": RING, **settings, **({"paths": ()} if path == "tcp" else {})}
        async with connected(host, path=path, config=SmcConfig(**settings)) as pair:
            yield pair

    return connect


def on_ring(loan: object) -> bool:
    return not isinstance(loan, CopiedView | CopiedReservation)


async def send(end: End, data: bytes, at_once: int = RING) -> None:
    """Through reservations alone."""
    place = 0
    while place < len(data):
        with await end.writer.reserve(min(at_once, len(data) - place)) as room:
            assert 0 < len(room) <= at_once
            size = min(len(room), len(data) - place)
            room[:size] = data[place : place + size]
            room.commit(size)
        place += size


async def receive(end: End, size: int, at_once: int = -1) -> bytes:
    """Through views alone."""
    got = bytearray()
    while len(got) < size:
        with await end.reader.view(min(at_once, size - len(got))) as view:
            assert len(view), "the stream has ended"
            got += view
            view.consume()
    return bytes(got)


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


# Misuse.


async def test_one_view_at_a_time_and_no_read_beside_it(connect: Connect) -> None:
    async with connect() as (client, server):
        client.writer.write(b"hello\n")
        view = await server.reader.view(3)
        reader = server.reader
        refused: dict[str, Callable[[], Awaitable[object]]] = {
            "view": reader.view,
            "read": lambda: reader.read(1),
            "read all": reader.read,
            "readexactly": lambda: reader.readexactly(1),
            "readexactly much": lambda: reader.readexactly(100 << 20),
            "readuntil": lambda: reader.readuntil(b"\n"),
            "readline": reader.readline,
            "iteration": lambda: reader.__anext__(),
            "readinto": lambda: reader.readinto(bytearray(1)),
        }
        for call in refused.values():
            with pytest.raises(RuntimeError, match="a view of received bytes is open"):
                await call()
        assert not reader.at_eof()
        assert bytes(view) == b"hel"
        view.consume()
        assert await reader.readline() == b"lo\n"


async def test_no_view_while_somebody_waits_for_bytes(connect: Connect) -> None:
    async with connect() as (client, server):
        reading = asyncio.create_task(server.reader.read(1))
        await turns()
        with pytest.raises(RuntimeError, match="already waiting for incoming data"):
            await server.reader.view()
        client.writer.write(b"x")
        assert await reading == b"x"


async def test_one_reservation_at_a_time_and_no_write_beside_it(connect: Connect) -> None:
    async with connect() as (client, server):
        room = await client.writer.reserve(3)
        with pytest.raises(RuntimeError, match="a reservation is open"):
            client.writer.write(b"x")
        with pytest.raises(RuntimeError, match="a reservation is open"):
            client.writer.writelines([b"x"])
        with pytest.raises(RuntimeError, match="a reservation is open"):
            await client.writer.reserve(1)
        await client.writer.drain()
        room[:] = b"abc"
        room.commit()
        client.writer.write(b"def")
        assert await server.reader.readexactly(6) == b"abcdef"


async def test_what_is_over_is_over(connect: Connect) -> None:
    async with connect() as (client, server):
        client.writer.write(b"data")
        for end in ("consume", "close"):
            view = await server.reader.view(1)
            getattr(view, end)()
            assert (view.closed, len(view)) == (True, 1)
            view.close()
            with pytest.raises(ValueError, match="the view is closed"):
                view.consume()
        for end in ("commit", "close"):
            room = await client.writer.reserve(1)
            getattr(room, end)()
            assert (room.closed, len(room)) == (True, 1)
            room.close()
            with pytest.raises(ValueError, match="the reservation is closed"):
                room.commit()


async def test_the_rings_bytes_are_not_exported_when_it_is_over() -> None:
    async with connected() as (client, server):
        client.writer.write(b"data")
        view = await server.reader.view()
        room = await client.writer.reserve(1)
        view.close()
        room.close()
        for loan in (view, room):
            with pytest.raises(BufferError, match="closed"):
                memoryview(loan)


async def test_numbers_out_of_range_are_refused(connect: Connect) -> None:
    async with connect() as (client, server):
        client.writer.write(b"data")
        for arguments in ((0, 1), (5, 6), (-1, 0), (-1, -1), (10, 0)):
            with pytest.raises(ValueError, match="at_least"):
                await server.reader.view(arguments[0], at_least=arguments[1])
        for arguments in ((0, 1), (-1, 1), (5, 6), (5, 0)):
            with pytest.raises(ValueError, match="at_least"):
                await client.writer.reserve(arguments[0], at_least=arguments[1])
        with await server.reader.view(at_least=4) as view, await client.writer.reserve(4) as room:
            for wrong in (-1, 5):
                with pytest.raises(ValueError, match=f"{wrong} bytes of a view of 4"):
                    view.consume(wrong)
                with pytest.raises(ValueError, match=f"{wrong} bytes of a reservation of 4"):
                    room.commit(wrong)
            with pytest.raises(ValueError, match="different structures"):
                room[:] = b"longer than that"
            with pytest.raises(IndexError):
                room[4] = 1
            room[0] = 65
        assert await server.reader.readexactly(4) == b"data"


async def test_nothing_is_reserved_behind_the_own_end(connect: Connect) -> None:
    async with connect() as (client, _):
        client.writer.write_eof()
        with pytest.raises(RuntimeError, match=r"after write_eof\(\)"):
            await client.writer.reserve(1)


async def test_another_thread_is_refused() -> None:
    async with connected() as (client, server):
        client.writer.write(b"data")
        view, room = await server.reader.view(), await client.writer.reserve(1)
        errors: list[BaseException] = []

        def use() -> None:
            for call in (view.consume, view.close, room.commit, room.close):
                try:
                    call()
                except RuntimeError as error:
                    errors.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert len(errors) == 4
        room.close()
        view.consume()


# Waiting.


@pytest.mark.parametrize("spin_us", [0, 50])
async def test_a_reservation_waits_for_room(spin_us: int) -> None:
    async with connected(config=SmcConfig(rmb_size=RING, spin_us=spin_us)) as (client, server):
        data = pattern(RING)
        client.writer.write(data)
        waiting = asyncio.create_task(client.writer.reserve(5))
        await turns()
        assert not waiting.done()
        with pytest.raises(RuntimeError, match="already waiting for room"):
            await client.writer.reserve(1)
        assert await server.reader.readexactly(RING) == data
        with await waiting as room:
            room[:] = b"after"
            room.commit()
        assert await server.reader.readexactly(5) == b"after"


async def test_a_reservation_comes_behind_what_waits(connect: Connect) -> None:
    async with connect() as (client, server):
        data = pattern(3 * RING)
        client.writer.write(data)
        sending = asyncio.create_task(send(client, b"after"))
        await turns()
        assert await server.reader.readexactly(len(data)) == data
        assert await server.reader.readexactly(5) == b"after"
        await sending


@pytest.mark.parametrize("ending", ["close", "abort", "write_eof"])
async def test_who_waits_for_room_hears_of_the_own_end(ending: str) -> None:
    async with connected(config=SmcConfig(rmb_size=RING, spin_us=0)) as (client, _):
        client.writer.write(bytes(RING))
        waiting = asyncio.create_task(client.writer.reserve(5))
        await turns()
        getattr(client.writer.transport, ending)()
        with pytest.raises(ConnectionResetError):
            await waiting


@pytest.mark.parametrize("ending", ["close", "abort"])
@pytest.mark.parametrize("spin_us", [0, 50])
async def test_who_waits_for_room_hears_of_the_peers_end(ending: str, spin_us: int) -> None:
    async with connected(config=SmcConfig(rmb_size=RING, spin_us=spin_us)) as (client, server):
        client.writer.write(bytes(RING))
        waiting = asyncio.create_task(client.writer.reserve(5))
        await turns()
        getattr(server.writer.transport, ending)()
        with pytest.raises(ConnectionResetError):
            await waiting


async def into(end: End, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: await end.reader.readinto(buffer)])


async def viewed(end: End, at_least: int) -> bytes:
    with await end.reader.view(at_least=at_least) as view:
        got = bytes(view)
        view.consume()
        return got


CALLS: dict[str, Callable[[End], Any]] = {
    "readinto": lambda end: into(end, 1000),
    "view": lambda end: viewed(end, 1),
    "view of at least": lambda end: viewed(end, 1000),
    "view of more than the ring": lambda end: viewed(end, 2 * RING),
}


@pytest.mark.parametrize("woken", [False, True], ids=["asleep", "woken"])
@pytest.mark.parametrize("spin_us", [0, 50])
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_cancelled_at_every_await_takes_nothing(
    call: str, spin_us: int, woken: bool, connect: Connect, rng: random.Random
) -> None:
    data = pattern(3 * RING)
    cancelled, point = True, 0
    while cancelled:
        async with connect(spin_us=spin_us) as (client, server):
            taking = asyncio.create_task(run(cancelled_at(point, CALLS[call](server), woken=woken)))
            await turns(3)
            sending = asyncio.create_task(trickle(client, data, rng))
            await asyncio.wait([taking])
            cancelled = taking.cancelled()
            got = b"" if cancelled else taking.result()
            del taking
            assert got + await server.reader.read() == data, point
            await sending
        point += 1
    assert point > 1, "it never waited"


async def run(call: Awaitable[Any]) -> Any:
    """`cancelled_at` is no coroutine to every event loop."""
    return await call


async def trickle(end: End, data: bytes, rng: random.Random) -> None:
    place = 0
    while place < len(data):
        size = rng.choice([1, 500, RING // 2])
        end.writer.write(data[place : place + size])
        place += size
        await turns(rng.randrange(10))
    end.writer.write_eof()


@pytest.mark.parametrize("woken", [False, True], ids=["asleep", "woken"])
@pytest.mark.parametrize("spin_us", [0, 50])
async def test_a_reservation_cancelled_at_every_await_leaves_the_way_free(spin_us: int, woken: bool) -> None:
    cancelled, point = True, 0
    while cancelled:
        async with connected(config=SmcConfig(rmb_size=RING, spin_us=spin_us)) as (client, server):
            data = pattern(2 * RING)
            client.writer.write(data)

            async def reserve(writer: Any = client.writer) -> None:
                with await writer.reserve(10) as room:
                    room[:] = b"0123456789"
                    room.commit()

            reserving = asyncio.create_task(run(cancelled_at(point, reserve(), woken=woken)))
            await turns(3)
            assert await server.reader.readexactly(len(data)) == data
            await asyncio.wait([reserving])
            cancelled = reserving.cancelled()
            await send(client, b"after")
            client.writer.write_eof()
            assert await server.reader.read() == (b"" if cancelled else b"0123456789") + b"after", point
        point += 1
    assert point > 1, "it never waited"


async def test_the_loop_has_its_turn_between_views_that_are_there() -> None:
    """A reader that never waits does not keep all others from running."""
    async with connected() as (client, server):
        client.writer.write(bytes(1000))
        await server.reader.view()  # dropped at once
        others = asyncio.create_task(turns(3))
        for _ in range(1000):
            (await server.reader.view(1)).consume()
        assert others.done()


# The end of a connection, and whoever still looks.


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
