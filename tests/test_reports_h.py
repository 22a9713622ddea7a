"""Field reports of section H: forks, threads and interpreters. Those of 68 and 69 are in test_fork.py."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import smcfast
from support.addresses import port_of
from support.loops import run_within
from support.process import in_a_child, mappings
from support.streams import connected, echo, pattern

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

PAGE: Final = 4096
THREADS: Final = 4
CONNECTIONS: Final = 100
"""Of each thread."""
GUARD: Final = 25.0


def dont_copy() -> list[tuple[int, int, bool]]:
    """First and last address of each mapping of a connection, and whether children do without it."""
    found = []
    for mapping in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        if "/memfd:smcfast " in mapping:
            first, last = (int(address, 16) for address in mapping.split(" ", 1)[0].split("-"))
            flags = mapping.partition("VmFlags:")[2].split()
            found.append((first, last, "dc" in flags))
    return found


async def test_report_70_a_child_has_all_of_its_memory_but_that_of_connections() -> None:
    """What children do without are whole pages that nobody but the connections uses: no neighbour goes with them."""
    heap = [pattern(size, size) for size in range(1, 20_000, 97)]
    async with connected() as (client, server):
        client.writer.write(b"x" * 5000)
        await server.reader.readexactly(5000)
        found = dont_copy()
        assert len(found) == mappings("smcfast") > 0
        for first, last, without in found:
            assert first % PAGE == last % PAGE == 0
            assert without

        def child() -> None:
            assert mappings("smcfast") == 0
            assert heap == [pattern(size, size) for size in range(1, 20_000, 97)]

        assert in_a_child(child) == ""


SUBINTERPRETER = """
import sys
try:
    import _interpreters
    created = [(kind, _interpreters.create(kind)) for kind in ("legacy", "isolated")]
except ImportError:
    import _xxsubinterpreters as _interpreters
    created = [(kind, _interpreters.create(isolated=kind == "isolated")) for kind in ("legacy", "isolated")]

IN_MAIN_TOO = sys.argv[1] == "main first"
if IN_MAIN_TOO:
    import smcfast

for kind, interpreter in created:
    try:
        failure = _interpreters.run_string(interpreter, "import smcfast")
    except Exception as error:
        failure = error
    print(kind, failure)
    _interpreters.destroy(interpreter)

import asyncio, smcfast

async def main():
    async def echo(reader, writer):
        writer.write(await reader.readexactly(5))
        writer.close()
    async with await smcfast.start_smc_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await smcfast.open_smc_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        print(await reader.read(), writer.get_extra_info("smc").path)
        writer.close()
        await writer.wait_closed()

asyncio.run(main())
"""


@pytest.mark.parametrize("order", ["main first", "subinterpreters first"])
def test_report_71_a_subinterpreter_is_told_why_and_the_main_one_goes_on(run_python: Run, order: str) -> None:
    done = run_python("-W", "ignore", "-c", SUBINTERPRETER, order)
    assert (done.returncode, done.stderr) == (0, "")
    *refused, last = done.stdout.splitlines()
    assert last == "b'hello' smc-d"
    for kind in ("legacy", "isolated"):
        (line,) = (line for line in refused if line.startswith(kind))
        assert "ImportError" in line
        assert (
            "smcfast cannot be used in a subinterpreter, since its native core has one state for the whole process"
            in line
        )


def in_threads(count: int, work: Callable[[int], Any]) -> None:
    """Run `work` in `count` threads at once; the first error of any is raised."""
    with ThreadPoolExecutor(count) as pool:
        for each in [pool.submit(work, number) for number in range(count)]:
            each.result()


@pytest.mark.filterwarnings("default")  # warnings filters belong to the process, not to a thread
def test_report_72_two_loops_in_two_threads_and_no_lock_where_there_is_none(loop_kind: str) -> None:
    """A free-threaded interpreter keeps its lock off: the module declares that it does not need it."""

    async def talk() -> None:
        data = pattern(2_000_000)
        async with connected() as (client, server):
            for one, other in ((client, server), (server, client)):
                one.writer.write(data)
                assert await other.reader.readexactly(len(data)) == data

    in_threads(2, lambda _: run_within(GUARD, loop_kind, talk))
    assert getattr(sys, "_is_gil_enabled", lambda: True)() == ("t" not in sys.abiflags)


@pytest.mark.filterwarnings("default")
def test_report_73_four_loops_in_four_threads_with_a_hundred_connections_each(loop_kind: str) -> None:
    """Each thread serves, and connects to the servers of all: both ends of most connections are in different threads."""
    ports: list[int] = []
    all_serve, all_done = threading.Barrier(THREADS), threading.Barrier(THREADS)

    async def thread() -> None:
        server = await smcfast.start_smc_server(echo, "127.0.0.1", 0, backlog=THREADS * CONNECTIONS)
        ports.append(port_of(server.sockets))
        await asyncio.to_thread(all_serve.wait, GUARD)
        async with asyncio.TaskGroup() as group:
            for number in range(CONNECTIONS):
                group.create_task(talk(ports[number % THREADS], number))
        await asyncio.to_thread(all_done.wait, GUARD)
        server.close()
        server.close_clients()
        await server.wait_closed()

    async def talk(port: int, number: int) -> None:
        data = pattern(20_000, number)
        reader, writer = await smcfast.open_smc_connection("127.0.0.1", port)
        assert writer.get_extra_info("smc").path == "smc-d", writer
        for _ in range(3):
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    in_threads(THREADS, lambda _: run_within(GUARD, loop_kind, thread))
