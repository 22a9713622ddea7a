"""Streams and threads: each belongs to its loop, and says so when it is used elsewhere."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig
from support.loops import new_loop, run_on
from support.streams import End, connected

if TYPE_CHECKING:
    from collections.abc import Callable

USES: dict[str, Callable[[Any, Any], Any]] = {
    "read": lambda reader, _: reader.read(1).send(None),
    "read all": lambda reader, _: reader.read().send(None),
    "readexactly": lambda reader, _: reader.readexactly(1).send(None),
    "readuntil": lambda reader, _: reader.readuntil(b"x").send(None),
    "readline": lambda reader, _: reader.readline().send(None),
    "write": lambda _, writer: writer.write(b"x"),
    "writelines": lambda _, writer: writer.writelines([b"x"]),
    "large write": lambda _, writer: writer.write(bytes(1 << 20)),
    "drain": lambda _, writer: writer.drain().send(None),
    "write_eof": lambda _, writer: writer.write_eof(),
    "wait_closed": lambda _, writer: writer.wait_closed().send(None),
    "close": lambda _, writer: writer.close(),
    "abort": lambda _, writer: writer.transport.abort(),
    "set_protocol": lambda _, writer: writer.transport.set_protocol(asyncio.Protocol()),
    "pause_reading": lambda _, writer: writer.transport.pause_reading(),
    "resume_reading": lambda _, writer: writer.transport.resume_reading(),
    "set_write_buffer_limits": lambda _, writer: writer.transport.set_write_buffer_limits(1000),
}


async def still_good(client: End, server: End) -> None:
    for one, other in ((client, server), (server, client)):
        one.writer.write(b"hello")
        assert await other.reader.readexactly(5) == b"hello"


def error_of(use: Callable[[], Any]) -> str:
    """What a thread without a loop is told."""
    try:
        use()
    except RuntimeError as error:
        return f"{threading.current_thread().name} {error}"
    return "nothing"


@pytest.mark.parametrize("use", USES)
async def test_another_thread_is_refused_and_harms_nothing(use: str) -> None:
    async with connected() as (client, server):
        client.writer.write(b"line\n")
        await server.reader.readuntil(b"li")  # so that the buffer is not empty
        said = await asyncio.to_thread(error_of, lambda: USES[use](server.reader, server.writer))
        thread, _, text = said.partition(" ")
        assert repr(asyncio.get_running_loop()) in text
        assert repr(threading.current_thread().name) in text
        assert repr(thread) in text
        assert "runs no loop" in text
        assert await server.reader.readline() == b"ne\n"
        await still_good(client, server)


async def test_another_loop_of_another_thread_is_named(loop_kind: str) -> None:
    async with connected() as (client, server):
        told: list[str] = []

        async def elsewhere() -> None:
            for use in (client.reader.read(1), client.writer.drain()):
                try:
                    await use
                except RuntimeError as error:
                    told.append(str(error))
            told.append(repr(asyncio.get_running_loop()))

        await asyncio.to_thread(run_on, loop_kind, elsewhere)
        *errors, other = told
        assert len(errors) == 2
        for text in errors:
            assert repr(asyncio.get_running_loop()) in text
            assert other in text
        await still_good(client, server)


async def test_another_thread_reaches_the_loop_as_asyncio_says() -> None:
    async with connected() as (client, server):
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(server.reader.readexactly(5))
        loop.call_soon_threadsafe(client.writer.write, b"hello")
        assert await reading == b"hello"

        async def read() -> bytes:
            return await server.reader.readexactly(5)

        def elsewhere() -> bytes:
            client_wrote = asyncio.run_coroutine_threadsafe(client.writer.drain(), loop)  # type: ignore[arg-type]
            client_wrote.result(30)
            return asyncio.run_coroutine_threadsafe(read(), loop).result(30)

        client.writer.write(b"again")
        assert await asyncio.to_thread(elsewhere) == b"again"


def test_a_loop_that_nobody_runs_may_be_served_from_anywhere_and_move(loop_kind: str) -> None:
    loop = new_loop(loop_kind)
    context = connected()
    client, server = loop.run_until_complete(context.__aenter__())
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            loop.run_until_complete(still_good(client, server))
        except BaseException as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    client.writer.write(b"before")
    thread = threading.Thread(target=elsewhere)
    assert loop.run_until_complete(server.reader.readexactly(6)) == b"before"
    thread.start()
    thread.join()
    assert errors == []
    client.writer.write(b"after")
    assert loop.run_until_complete(server.reader.readexactly(5)) == b"after"
    loop.run_until_complete(context.__aexit__(None, None, None))
    loop.close()


def test_a_stream_of_another_loop_of_this_thread_is_refused_where_it_waits(loop_kind: str) -> None:
    """As with asyncio: bytes that are there are had, and who has to wait is told."""
    first, second = new_loop(loop_kind), new_loop(loop_kind)
    context = connected(config=SmcConfig(spin_us=0))
    client, server = first.run_until_complete(context.__aenter__())

    async def read() -> bytes:
        return await server.reader.read(1)

    with pytest.raises(RuntimeError, match="attached to a different loop"):
        second.run_until_complete(read())
    second.close()
    first.run_until_complete(still_good(client, server))
    first.run_until_complete(context.__aexit__(None, None, None))
    first.close()


async def test_garbage_that_another_thread_collects_is_closed_in_the_loop() -> None:
    """The collector runs in any thread: what it finds there is closed by the loop, and the peer sees a clean end."""
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    server = await smcfast.start_smc_server(lambda *pair: arrived.set_result(End(*pair)), "127.0.0.1", 0)
    dropped = [*await smcfast.open_smc_connection(*server.sockets[0].getsockname())]
    assert dropped[1].get_extra_info("smc").path == "smc-d"
    other = await arrived
    with pytest.warns(ResourceWarning, match="unclosed <RingStreamWriter"):
        await asyncio.to_thread(dropped.clear)
    assert await other.reader.read() == b""
    other.writer.close()
    await other.writer.wait_closed()
    server.close()
    await server.wait_closed()


async def test_other_threads_run_during_large_copies() -> None:
    """The interpreter's lock is given up for them: nothing else lets another thread run here."""
    size = 32 << 20
    ticks, done = itertools.count(), threading.Event()

    def tick() -> None:
        while not done.is_set():
            next(ticks)
            time.sleep(0)  # gives the lock up, if anybody wants it

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody takes the lock away
    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        async with connected(config=SmcConfig(rmb_size=size)) as (client, server):
            copies = {
                "write": lambda: client.writer.write(bytes(size)),
                "read": lambda: server.reader._endpoint.take(size),  # type: ignore[attr-defined]
            }
            for _ in range(2):
                for copy in copies.values():
                    before = next(ticks)
                    copy()
                    assert next(ticks) > before + 1
    finally:
        sys.setswitchinterval(interval)
        done.set()
        ticking.join()
