"""Several loops: one after another, in several threads, and across a fork; nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import warnings
import weakref
from typing import TYPE_CHECKING

import pytest

import smcfast
from support.loops import run_on
from support.streams import connected, eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 4
CONNECTIONS = 25


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def exit_status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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


@pytest.mark.filterwarnings("default")  # warnings filters belong to the process, not to a thread
def test_report_73_many_connections_on_loops_in_several_threads(loop_kind: str) -> None:
    errors: list[BaseException] = []

    async def many() -> None:
        await asyncio.gather(*(talk(200_000) for _ in range(CONNECTIONS)))

    def thread() -> None:
        try:
            run_on(loop_kind, many)
        except BaseException as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    threads = [threading.Thread(target=thread) for _ in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []


async def test_many_connections_share_link_groups(host: str) -> None:
    """255 in a group: more than that make a second one."""
    async with contextlib.AsyncExitStack() as stack:
        ends = [(await stack.enter_async_context(connected(host))).client for _ in range(300)]
        assert len({end.info.link_group for end in ends}) == 2


async def test_reports_68_and_69_a_child_that_touches_an_inherited_connection_gets_an_error(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"before")
        assert await server.reader.readexactly(6) == b"before"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
            child = os.fork()
        if child == 0:
            status = 1
            try:
                for touch in (
                    lambda: client.writer.write(b"child"),
                    lambda: server.reader.read(1).send(None),  # type: ignore[attr-defined]
                    lambda: server.reader.at_eof(),
                    lambda: client.writer.transport.abort(),  # type: ignore[attr-defined]
                ):
                    try:
                        touch()
                    except RuntimeError as error:
                        assert "forked" in str(error)  # noqa: PT017
                    else:
                        raise AssertionError
                del touch
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert exit_status(child) == 0
        client.writer.write(b"after")
        assert await server.reader.readexactly(5) == b"after"


def test_a_child_opens_connections_of_its_own(run: Callable[..., None]) -> None:
    run(talk, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            run(talk, 1000)
            status = 0
        finally:
            os._exit(status)
    assert exit_status(child) == 0
    run(talk, 10)


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


async def test_a_child_does_not_wait_for_a_lock_that_a_thread_held_at_the_fork() -> None:
    async with connected(config=smcfast.SmcConfig(rmb_size=16 * 1024)) as (client, _):
        endpoint = client.reader._endpoint  # type: ignore[attr-defined]
        data = bytes(200 << 20)
        writing = threading.Thread(target=client.writer.write, args=(data,))
        writing.start()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            signal.alarm(5)
            status = 1
            try:
                endpoint.at_eof()
            except RuntimeError:
                status = 0
            finally:
                os._exit(status)
        assert exit_status(child) == 0
        writing.join()
        client.writer.transport.abort()  # type: ignore[attr-defined]


async def test_report_28_an_idle_connection_is_not_woken(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"x")
        await server.reader.readexactly(1)
        reading = asyncio.ensure_future(server.reader.read(1))
        await eventually(lambda: server.info.counters["stalls_received"] > 0)
        before = server.info.counters
        await asyncio.sleep(0.2)  # idle time is what is measured; nothing waits for it
        assert server.info.counters == before
        client.writer.write(b"y")
        assert await reading == b"y"
