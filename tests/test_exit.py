"""The end of a process: open connections, threads in the middle of a copy, memory that is not to be had."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

import smcfast
from support.addresses import port_of
from support.channel import GUARD
from support.streams import End

if TYPE_CHECKING:
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
started.wait(30)
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


LEAVER: Final = """
import asyncio, os, sys, threading, smcfast

_, loop_kind, state, way, port = sys.argv
CONFIG = smcfast.SmcConfig(rmb_size=16 * 1024)
if loop_kind == "uvloop":
    import uvloop
    loop = uvloop.new_event_loop()
else:
    loop = asyncio.new_event_loop()
kept = []  # so that only the end of the interpreter ends it

async def connect():
    reader, writer = await smcfast.open_smc_connection("127.0.0.1", int(port), config=CONFIG)
    assert writer.get_extra_info("smc").path == "smc-d"
    kept.extend((reader, writer))
    return reader, writer

async def idle():
    await connect()

async def reading():
    reader, writer = await connect()
    kept.append(asyncio.ensure_future(reader.readexactly(100_000)))
    await asyncio.sleep(0)

async def draining():
    reader, writer = await connect()
    writer.write(bytes(1_000_000))
    kept.append(asyncio.ensure_future(writer.drain()))
    await asyncio.sleep(0)

async def half_closed():
    reader, writer = await connect()
    writer.write_eof()

async def closing():
    "With more to say than there is room for."
    reader, writer = await connect()
    writer.write(bytes(1_000_000))
    writer.close()

async def pushing():
    "Data is handed to a protocol."
    reader, writer = await connect()
    class Sink(asyncio.Protocol):
        pass
    writer.transport.set_protocol(Sink())

async def setting_up():
    "Beside a connection, one whose server has accepted and says nothing, and a server with somebody in front of it."
    await connect()
    accepted = loop.create_future()
    async def accept(reader, writer):
        accepted.set_result(await reader.read(1))
        await reader.read()
    silent = await asyncio.start_server(accept, "127.0.0.1", 0)
    config = smcfast.SmcConfig(assume=("*:*",), handshake_timeout=3600)
    kept.append(asyncio.ensure_future(smcfast.open_smc_connection(*silent.sockets[0].getsockname(), config=config)))
    await accepted
    server = await smcfast.start_smc_server(lambda *pair: kept.extend(pair), "127.0.0.1", 0, config=config)
    kept.append(server)
    kept.append(await asyncio.open_connection(*server.sockets[0].getsockname()))

def leave(code):
    sys.exit(code)

def run():
    loop.run_until_complete(globals()[state]())
    if way == "sys.exit in a callback":
        loop.call_soon(leave, 3)
        loop.run_forever()
    elif way == "an error in a task":
        async def fail():
            raise SystemExit(3)
        loop.run_until_complete(fail())
    elif way == "a daemon thread":
        started.set()
        loop.run_forever()

started = threading.Event()
if way == "a daemon thread":
    threading.Thread(target=run, daemon=True).start()
    started.wait()
else:
    run()
if way == "os._exit":
    os._exit(3)
sys.exit(3)
"""
STATES: Final = ("idle", "reading", "draining", "half_closed", "closing", "pushing", "setting_up")
WAYS: Final = ("the end of the program", "os._exit", "sys.exit in a callback", "an error in a task", "a daemon thread")


def leaver(*arguments: str | int) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-W",
        "ignore::ResourceWarning",
        "-c",
        LEAVER,
        *map(str, arguments),
    ]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", STATES)
async def test_an_exit_in_any_state_does_not_crash_and_the_peer_sees_it(loop_kind: str, state: str, way: str) -> None:
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    server = await smcfast.start_smc_server(lambda *pair: arrived.set_result(End(*pair)), "127.0.0.1", 0)
    with leaver(loop_kind, state, way, port_of(server.sockets)) as process:
        end = await arrived
        assert (end.info.path, end.info.reason) == ("smc-d", None)
        try:
            while await end.reader.read(2**16):
                pass
            seen = "end"
        except ConnectionResetError:
            seen = "reset"
        _, errors = process.communicate(timeout=GUARD)
    assert process.returncode == 3, errors
    assert "Fatal" not in errors
    assert "panic" not in errors
    assert "Exception ignored" not in errors
    # Only whoever has declared an end is seen to end well; a close may have had the time for it.
    if state != "closing":
        assert seen == ("end" if state == "half_closed" else "reset")
    end.writer.close()
    await end.closed()
    server.close()
    await server.wait_closed()
