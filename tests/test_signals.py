"""Ctrl-C and other signals: whatever a program waits for or does, they come through, and it can clean up."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

GUARD: Final = 30.0

PROGRAM: Final = """
import asyncio, sys, smcfast
from smcfast import SmcConfig

SPIN = SmcConfig(spin_us=10_000, rmb_size=16 * 1024)
ASLEEP = SmcConfig(spin_us=0, rmb_size=16 * 1024)

async def pair(config):
    arrived = asyncio.get_running_loop().create_future()
    server = await smcfast.start_smc_server(lambda *pair: arrived.set_result(pair), "127.0.0.1", 0, config=config)
    streams = await smcfast.open_smc_connection(*server.sockets[0].getsockname(), config=config)
    assert streams[1].get_extra_info("smc").path == "smc-d"
    return *streams, *await arrived

def ready():
    print("ready", flush=True)

async def read_asleep():
    reader, *others = await pair(ASLEEP)
    asyncio.get_running_loop().call_soon(ready)
    await reader.read(1)

async def read_spinning():
    reader, *others = await pair(SPIN)
    ready()
    while True:  # each wait spins for a while before it sleeps, and the next one again
        try:
            await asyncio.wait_for(reader.read(1), 0.005)
        except TimeoutError:
            pass

async def read_and_write():
    "A stream that never suspends of its own accord."
    reader, writer, other_reader, other_writer = await pair(SPIN)
    ready()
    while True:
        writer.write(b"x")
        await other_reader.readexactly(1)

async def drain():
    reader, writer, *others = await pair(ASLEEP)
    writer.write(bytes(1_000_000))
    asyncio.get_running_loop().call_soon(ready)
    await writer.drain()

async def copies():
    "Copies of hundreds of megabytes, made without the interpreter's lock."
    size = 256 << 20
    reader, writer, other_reader, other_writer = await pair(SmcConfig(rmb_size=512 << 20))
    data = bytes(size)
    ready()
    while True:
        writer.write(data)
        await other_reader.readexactly(size)

async def set_up():
    "A server that accepts and says nothing, for a client that knows that it speaks SMC."
    async def accept(reader, writer):
        await reader.read(1)
        ready()
        await reader.read()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    config = SmcConfig(assume=("*:*",), handshake_timeout=3600)
    await smcfast.open_smc_connection(*server.sockets[0].getsockname(), config=config)

async def serve():
    server = await smcfast.start_smc_server(lambda *_: None, "127.0.0.1", 0)
    asyncio.get_running_loop().call_soon(ready)
    await server.serve_forever()

main = globals()[sys.argv[2]]
if sys.argv[1] == "uvloop":
    import uvloop
    factory = uvloop.new_event_loop
else:
    factory = asyncio.new_event_loop
with asyncio.Runner(loop_factory=factory) as runner:
    runner.run(main())
"""
STATES: Final = ("read_asleep", "read_spinning", "read_and_write", "drain", "copies", "set_up", "serve")


@pytest.fixture
def program(loop_kind: str, state: str) -> Iterator[subprocess.Popen[str]]:
    """The program in its state."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", PROGRAM, loop_kind, state],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.mark.parametrize("state", STATES)
def test_report_17_ctrl_c_comes_through(program: subprocess.Popen[str], state: str) -> None:
    """As KeyboardInterrupt, which ends the process as the signal would."""
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=GUARD)
    assert program.returncode == -signal.SIGINT, errors
    assert errors.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.parametrize("state", STATES)
def test_report_17_sigterm_comes_through(program: subprocess.Popen[str], state: str) -> None:
    program.terminate()
    _, errors = program.communicate(timeout=GUARD)
    assert (program.returncode, errors) == (-signal.SIGTERM, "")
