"""Views and reservations that are used as they should not be: an error each time, and the stream goes on."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING

import pytest

from support.in_place import connected_by
from support.streams import Pair, connected, turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

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
