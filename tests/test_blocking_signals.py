"""Ctrl-C and other signals come through whatever a blocking socket waits for, and a handler that returns disturbs nothing."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

from support.sockets import GUARD, PATHS, Beside, connected, received, serving, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM: Final = """
import socket, sys, threading, smcfast
from smcfast import SmcConfig

SPIN = SmcConfig(spin_us=10_000, rmb_size=16 * 1024, fallback="forbid")
ASLEEP = SmcConfig(spin_us=0, rmb_size=16 * 1024, fallback="forbid")

def pair(config):
    listener = smcfast.create_server(("127.0.0.1", 0), config=config)
    client = smcfast.create_connection(listener.getsockname(), config=config)
    return listener, client, listener.accept()[0]

def ready():
    print("ready", flush=True)

def recv_asleep():
    listener, client, server = pair(ASLEEP)
    ready()
    server.recv(1)

def recv_spinning():
    listener, client, server = pair(SPIN)
    server.settimeout(0.005)
    ready()
    while True:
        try:
            server.recv(1)
        except TimeoutError:
            pass

def sendall():
    listener, client, server = pair(ASLEEP)
    ready()
    server.sendall(bytes(1_000_000))

def sendall_that_never_waits():
    listener, client, server = pair(SmcConfig(rmb_size=16 << 20))
    def drain():
        buffer = bytearray(16 << 20)
        while client.recv_into(buffer):
            pass
    threading.Thread(target=drain, daemon=True).start()
    data = bytes(64 << 20)
    ready()
    while True:
        server.sendall(data)

def accept():
    listener = smcfast.create_server(("127.0.0.1", 0))
    ready()
    listener.accept()

def set_up():
    "A server that accepts and says nothing, for a client that knows that it speaks SMC."
    listener = socket.create_server(("127.0.0.1", 0))
    def answer():
        conn, _ = listener.accept()
        conn.recv(1)
        ready()
        conn.recv(100_000)
        conn.recv(1)
    threading.Thread(target=answer, daemon=True).start()
    smcfast.create_connection(listener.getsockname(), config=SmcConfig(assume=("*:*",), handshake_timeout=3600))

globals()[sys.argv[1]]()
"""
STATES: Final = ("recv_asleep", "recv_spinning", "sendall", "sendall_that_never_waits", "accept", "set_up")


@pytest.fixture
def program(state: str) -> Iterator[subprocess.Popen[str]]:
    """The program in its state."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", PROGRAM, state],
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
def test_ctrl_c_comes_through(program: subprocess.Popen[str], state: str) -> None:
    """Pressed again if need be: the interpreter does not see a signal that comes right before a system call that waits."""
    deadline = time.monotonic() + GUARD
    while program.poll() is None:
        assert time.monotonic() < deadline, state
        program.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(1)
    _, errors = program.communicate(timeout=GUARD)
    assert program.returncode == -signal.SIGINT, errors
    assert errors.splitlines()[-1] == "KeyboardInterrupt"


@pytest.fixture
def counted() -> Iterator[Callable[[], int]]:
    """SIGUSR1 is counted, and its handler returns."""
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
    yield lambda: len(calls)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("path", PATHS)
def test_a_handler_that_returns_does_not_end_a_wait(counted: Callable[[], int], path: str) -> None:
    """PEP 475, for each call; the time that is left goes on."""
    with connected(path=path, spin_us=0) as (client, server):
        helper = Beside(disturb, counted, 5, lambda: client.sendall(b"x"))
        assert server.recv(1) == b"x"
        helper.result()
        helper = Beside(disturb, counted, 10, lambda: received(client, 5_000_000))
        server.sendall(bytes(5_000_000))
        helper.result()
    with serving(path=path) as listener:
        listener.settimeout(0.05)
        helper = Beside(disturb, counted, 15, int)
        with pytest.raises(TimeoutError):
            listener.accept()
        helper.result()


def disturb(counted: Callable[[], int], count: int, then: Callable[[], object]) -> None:
    """Send the main thread signals until `count` were handled, then go on."""
    while counted() < count:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        seen = counted()
        until(lambda seen=seen: counted() > seen)  # type: ignore[misc]
    then()


def test_what_a_handler_raises_ends_the_wait() -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with connected(spin_us=0) as (client, server):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(Alarm):
                server.recv(1)
            client.sendall(b"x")
            assert server.recv(1) == b"x"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_program_ends_beside_threads_that_wait() -> None:
    """Daemon threads in every call; nobody closes anything."""
    code = """
import threading, smcfast
from smcfast import SmcConfig
config = SmcConfig(rmb_size=16 * 1024, spin_us=0)
listener = smcfast.create_server(("127.0.0.1", 0), config=config)
client = smcfast.create_connection(listener.getsockname(), config=config)
server, _ = listener.accept()
client.fileno()
for call in (client.recv, server.recv):
    threading.Thread(target=call, args=(1,), daemon=True).start()
threading.Thread(target=client.sendall, args=(bytes(1_000_000),), daemon=True).start()
threading.Thread(target=listener.accept, daemon=True).start()
while client.smc_info.counters["stalls_sent"] < 1 or client.smc_info.counters["stalls_received"] < 1:
    pass
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=GUARD,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_a_program_that_ends_without_a_close_ends_its_stream() -> None:
    """As that of a socket: the peer reads the end, and no reset."""
    code = """
import sys, smcfast
client = smcfast.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall(client.smc_info.path.encode())
"""
    with serving() as listener:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore::ResourceWarning", "-c", code, str(listener.getsockname()[1])]
        )
        server, _ = listener.accept()
        with server:
            server.settimeout(GUARD)
            assert received(server, 100) == b"smc-d"
        assert process.wait(GUARD) == 0
