"""Several loops one after another, and loops that are dropped: nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import warnings
import weakref
from typing import TYPE_CHECKING

import pytest

import smcfast
from support.loops import run_on
from support.process import in_a_child
from support.streams import connected, eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def talk(size: int) -> None:
    data = pattern(size)
    async with connected() as (client, server):
        client.writer.write(data)
        server.writer.write(data)
        assert await server.reader.readexactly(size) == data
        assert await client.reader.readexactly(size) == data


def test_several_runs_in_one_process_leave_nothing_behind(run: Callable[..., None]) -> None:
    run(talk, 10)
    gc.collect()
    before = open_files()
    for _ in range(5):
        run(talk, 100_000)
    gc.collect()
    assert open_files() == before


def test_runs_on_both_kinds_of_loops_alternate() -> None:
    for _ in range(2):
        for kind in ("asyncio", "uvloop"):
            run_on(kind, talk, 1000)


async def test_many_connections_share_link_groups(host: str) -> None:
    """255 in a group: more than that make a second one."""
    async with contextlib.AsyncExitStack() as stack:
        ends = [(await stack.enter_async_context(connected(host))).client for _ in range(300)]
        assert len({end.info.link_group for end in ends}) == 2


async def test_cancelled_reads_leave_nothing_behind(host: str) -> None:
    """A read that was cancelled while it slept: the connection is freed with its last reference, and its group too."""
    kept = []
    for _ in range(20):
        async with connected(host) as (client, server):
            for end in (client, server):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(end.reader.read(1), 0.001)
            kept += [weakref.ref(end.reader._endpoint) for end in (client, server)]  # type: ignore[attr-defined]
        del client, server, end
    gc.collect()
    assert [ref() for ref in kept] == [None] * 40


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_loop_with_a_sleeping_read_is_freed(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()

    async def sleep_in_a_read() -> tuple[weakref.ref[object], asyncio.Task[bytes]]:
        streams = await connected(config=smcfast.SmcConfig(spin_us=0)).__aenter__()
        reading = asyncio.ensure_future(streams.server.reader.read(1))
        await eventually(lambda: streams.server.info.counters["stalls_received"] > 0)
        return weakref.ref(streams.server.reader._endpoint), reading  # type: ignore[attr-defined]

    endpoint, reading = loop.run_until_complete(sleep_in_a_read())
    assert endpoint() is not None
    loop.close()
    with caplog.at_level("CRITICAL"):  # asyncio tells of the task that is destroyed
        del loop, reading
        gc.collect()
    assert endpoint() is None


def test_loops_that_are_closed_amid_handshakes_are_collected() -> None:
    """Set-ups that wait are in a cycle with their loop's engine, which the collector must see through."""
    assert in_a_child(close_amid_handshakes) == ""


def close_amid_handshakes() -> None:
    """In a process of its own, which does not keep what was told of tasks and streams that nobody ended."""
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None

    opens: list[asyncio.Future[object]] = []

    async def begin(turns_before: int) -> None:
        server = await smcfast.start_smc_server(lambda *_: None, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        opens.extend(asyncio.ensure_future(smcfast.open_smc_connection(*address)) for _ in range(3))
        for _ in range(turns_before):
            await asyncio.sleep(0)

    loops = []
    counts = []
    for turn in range(12):
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        loop.run_until_complete(begin(turn % 6))
        loops.append(weakref.ref(loop))
        loop.close()
        del loop
        opens.clear()
        for _ in range(3):  # finalizers of tasks and coroutines bring others back to life for a moment
            gc.collect()
        counts.append(open_files())
    assert [each() for each in loops] == [None] * len(loops)
    assert counts[-1] == counts[5]


async def test_a_transport_that_could_not_be_made_leaves_nothing_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The news of a peer's death goes to those that are there."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the server's end is refused too
    from smcfast import _loop, transport

    def refuse(*_: object) -> None:
        raise ValueError("no")

    server = await smcfast.start_smc_server(lambda *_: None, "127.0.0.1", 0)
    with monkeypatch.context() as patch:
        patch.setattr(transport.RingTransport, "set_protocol", refuse)
        with pytest.raises(ValueError, match="no"):
            await smcfast.open_smc_connection(*server.sockets[0].getsockname())
        await eventually(lambda: not server._welcome.pending)
        assert _loop.engine()._transports == {}
    server.close()
    await server.wait_closed()
