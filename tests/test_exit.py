"""The end of a process: open connections, threads in the middle of a copy, memory that is not to be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

PAIR = """
import asyncio, smcfast

async def pair():
    arrived = asyncio.get_running_loop().create_future()
    server = await smcfast.start_smc_server(lambda *streams: arrived.set_result(streams), "127.0.0.1", 0)
    streams = await smcfast.open_smc_connection(*server.sockets[0].getsockname())
    assert streams[1].get_extra_info("smc").path == "smc-d"
    return *streams, *await arrived
"""

BUSY_THREAD = """
import threading

started = threading.Event()

async def busy():
    reader, writer, peer_reader, peer_writer = await pair()
    data = bytes(size)
    while True:
        writer.write(data)
        await peer_reader.readexactly(len(data))
        started.set()

threading.Thread(target=lambda: asyncio.run(busy()), daemon=True).start()
started.wait(10)
"""

NO_MEMORY = """
import resource

async def main():
    reader, writer, peer_reader, peer_writer = await pair()
    data = bytes(300 << 20)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), -1))
    try:
        writer.write(data)
    except MemoryError as error:
        print(error)
    writer.write(b"still good")
    print(await peer_reader.read(100))
    for each in (writer, peer_writer):
        each.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("size", [2000, 64 << 10, 8 << 20])
def test_a_daemon_thread_that_reads_and_writes_does_not_crash_the_exit(run_python: Run, size: int) -> None:
    done = run_python("-c", f"size = {size}{PAIR}{BUSY_THREAD}")
    assert (done.returncode, done.stderr) == (0, "")


def test_no_memory_for_what_waits_is_an_error_and_takes_nothing(run_python: Run) -> None:
    done = run_python("-c", PAIR + NO_MEMORY)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["no memory for bytes that have to wait", "b'still good'"]
