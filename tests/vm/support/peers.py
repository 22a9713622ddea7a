"""SMC sockets of the kernel, or streams of smcfast, in a process of their own, told step by step what to do.

The test holds a `KernelPeer` or an `SmcfastPeer`, made by the fixtures ``kernel_peer`` and ``smcfast_peer``; each step is a
coroutine and a blocking method::

    peer = kernel_peer()
    listener, port = await peer.listen(B.address)
    reader, writer = await smcfast.open_smc_connection(B.address, port)
    sock = await peer.accept(listener)
    echo = peer.start("echo", sock)       # goes on while the test does something else
    ...
    assert await peer.finish(echo) == 65536

Sockets are numbers, and the steps of both kinds of peer have the same names (`_Sockets` here, `streams.Streams`). Every step runs in a thread of the peer, or in a task, so that several can wait at once; a step that fails raises
`PeerFailed` here, with the errno where it is an OSError. A peer can be killed: ``peer.kill()``.

Data are those of a `pattern.Pattern`: only seed, position and length are told, and both ends check every byte.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from support.channel import GUARD, ChannelClosedError
from vm.support.pattern import Pattern
from vm.support.smc import IPPROTO_SMC, socket_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel
    from support.child import Child
    from vm.support.smc import Connection

_SIOCATMARK: Final = 0x8905
CHUNK: Final = 1 << 16
LONG: Final = 3600.0
"""Seconds that a peer waits for the next step; it ends with its test."""


class PeerFailed(OSError):
    """A step has failed in the peer: with its errno, or 0 and what was raised."""


class Peer:
    """The test's end. Steps are named as the methods of `_Sockets`."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._tickets = 0
        self._done: dict[int, Any] = {}
        self.kill = child.kill
        self.pid = child.pid

    def start(self, step: str, *args: Any) -> int:
        """Begin a step; a ticket for `finish`."""
        self._tickets += 1
        self._child.send([self._tickets, step, list(args)])
        return self._tickets

    async def finish(self, ticket: int, limit: float = GUARD) -> Any:
        """What the step returns.

        :raises PeerFailed: it has failed.
        """
        while ticket not in self._done:
            number, result = await self._child.areceive(limit)
            self._done[number] = result
        return self._taken(ticket)

    def finish_blocking(self, ticket: int, limit: float = GUARD) -> Any:
        """:meth:`finish` for tests that are no coroutines."""
        while ticket not in self._done:
            number, result = self._child.receive(limit)
            self._done[number] = result
        return self._taken(ticket)

    def _taken(self, ticket: int) -> Any:
        result = self._done.pop(ticket)
        if "error" in result:
            raise PeerFailed(result["errno"], result["error"])
        return result["value"]

    async def do(self, step: str, *args: Any, limit: float = GUARD) -> Any:
        """A step from beginning to end."""
        return await self.finish(self.start(step, *args), limit)

    def do_blocking(self, step: str, *args: Any, limit: float = GUARD) -> Any:
        """:meth:`do` for tests that are no coroutines."""
        return self.finish_blocking(self.start(step, *args), limit)

    async def listen(self, host: str, backlog: int = 128) -> tuple[int, int]:
        """A listener on a free port of `host`: the socket and the port."""
        listener, port = await self.do("listen", host, backlog)
        return listener, port

    async def accept(self, listener: int) -> int:
        """The next connection's socket."""
        number: int = await self.do("accept", listener)
        return number

    async def connect(self, host: str, port: int, source: str = "") -> int:
        """A connected socket, bound to the address `source` before."""
        number: int = await self.do("connect", host, port, source)
        return number


class SmcfastPeer(Peer):
    """Streams of smcfast, see `streams`."""

    async def path(self, sock: int) -> str:
        """What smcfast says of a stream."""
        said: str = await self.do("path", sock)
        return said


class KernelPeer(Peer):
    """SMC sockets of the kernel."""

    async def about(self, sock: int) -> Connection:
        """What the kernel says of a socket."""
        return socket_of(await self.do("inode", sock))


def main(parent: Channel) -> None:
    """The peer's process: carry out steps until the test hangs up or kills it."""
    sockets = _Sockets()
    lock = threading.Lock()

    def carry_out(number: int, step: Callable[..., Any], args: list[Any]) -> None:
        try:
            result = {"value": step(*args)}
        except Exception as error:  # noqa: BLE001 - told to the test
            result = {"errno": getattr(error, "errno", None) or 0, "error": f"{type(error).__name__}: {error}"}
        with lock, contextlib.suppress(OSError, TimeoutError):
            parent.send([number, result])

    while True:
        try:
            number, name, args = parent.receive(LONG)
        except ChannelClosedError:
            return
        step = getattr(sockets, name)
        threading.Thread(target=carry_out, args=(number, step, args), daemon=True).start()


class _Sockets:
    """The steps. Lengths and positions are bytes, the seeds those of patterns."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._lock = threading.Lock()

    def _add(self, sock: socket.socket) -> int:
        with self._lock:
            number = len(self._sockets) + 1
            self._sockets[number] = sock
        return number

    def listen(self, host: str, backlog: int) -> tuple[int, int]:
        """On a free port of the address: the socket and the port."""
        listener = _smc_socket(host)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, 0))
        listener.listen(backlog)
        return self._add(listener), listener.getsockname()[1]

    def accept(self, listener: int) -> int:
        """The next connection."""
        return self._add(self._sockets[listener].accept()[0])

    def greet(self, listener: int, seed: int, length: int) -> int:
        """Accept the next connection, and speak before anybody else can."""
        number = self.accept(listener)
        self.send(number, seed, length)
        return number

    def connect(self, host: str, port: int, source: str) -> int:
        """From the address `source`, "" for any."""
        sock = _smc_socket(host)
        try:
            if source:
                sock.bind((source, 0))
            sock.connect((host, port))
        except OSError:
            sock.close()
            raise
        return self._add(sock)

    def names(self, sock: int) -> tuple[Any, Any]:
        """Its own address and the peer's."""
        one = self._sockets[sock]
        return one.getsockname()[:2], one.getpeername()[:2]

    def inode(self, sock: int) -> int:
        """The socket's number for `smc.socket_of`."""
        return os.fstat(self._sockets[sock].fileno()).st_ino

    def send(self, sock: int, seed: int, length: int, at: int = 0, chunk: int = CHUNK) -> None:
        """Write `length` bytes of the pattern from position `at` on, `chunk` at a time."""
        pattern = Pattern(seed)
        for start in range(at, at + length, chunk):
            self._sockets[sock].sendall(pattern.take(start, min(chunk, at + length - start)))

    def receive(self, sock: int, seed: int, length: int, at: int = 0, chunk: int = CHUNK, pause_s: float = 0.0) -> None:
        """Read exactly `length` bytes and check them; a slow reader reads `chunk` at most and pauses each time."""
        pattern = Pattern(seed)
        end = at + length
        while at < end:
            data = self._sockets[sock].recv(min(chunk, end - at))
            if not data:
                raise EOFError(f"the stream ends {end - at} bytes too early")
            pattern.check(at, data)
            at += len(data)
            if pause_s:
                time.sleep(pause_s)

    def receive_to_end(self, sock: int, seed: int, at: int = 0) -> int:
        """Read to the end of the stream and check; how many bytes."""
        pattern, begun = Pattern(seed), at
        while data := self._sockets[sock].recv(CHUNK):
            pattern.check(at, data)
            at += len(data)
        return at - begun

    def receive_some(self, sock: int, length: int) -> str:
        """One read of at most so many bytes, in hexadecimal; "" at the end."""
        return self._sockets[sock].recv(length).hex()

    def send_bytes(self, sock: int, data: str) -> None:
        """Write bytes given in hexadecimal."""
        self._sockets[sock].sendall(bytes.fromhex(data))

    def echo(self, sock: int) -> int:
        """Send back what comes to its end, then shut down writing; how many bytes."""
        return _echo(self._sockets[sock])

    def send_urgent(self, sock: int, byte: int) -> None:
        """One byte of urgent data."""
        self._sockets[sock].send(bytes([byte]), socket.MSG_OOB)

    def receive_urgent(self, sock: int) -> int:
        """The urgent byte that has come; fails with EINVAL where none has, or EAGAIN where it is only announced."""
        return self._sockets[sock].recv(1, socket.MSG_OOB)[0]

    def is_at_mark(self, sock: int) -> bool:
        """Is the next byte the one behind which urgent data came?"""
        answer = array.array("i", [0])
        fcntl.ioctl(self._sockets[sock], _SIOCATMARK, answer)
        return bool(answer[0])

    def half_close(self, sock: int) -> None:
        """Shut down writing."""
        self._sockets[sock].shutdown(socket.SHUT_WR)

    def shut_reading(self, sock: int) -> None:
        """Shut down reading."""
        self._sockets[sock].shutdown(socket.SHUT_RD)

    def close(self, sock: int) -> None:
        """Close; with unread data that is an abort."""
        self._sockets[sock].close()

    def abort(self, sock: int) -> None:
        """Close with a linger time of zero."""
        self._sockets[sock].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sockets[sock].close()

    def set_option(self, sock: int, level: int, option: int, value: int) -> None:
        """setsockopt; buffer sizes for example."""
        self._sockets[sock].setsockopt(level, option, value)

    def serve_echo(self, listener: int, count: int) -> int:
        """Accept so many connections and echo each in a thread of its own; the bytes of all, when the last has ended."""
        totals: list[int] = []

        def serve(accepted: socket.socket) -> None:
            with accepted:
                totals.append(_echo(accepted))

        threads = []
        for _ in range(count):
            threads.append(threading.Thread(target=serve, args=(self._sockets[listener].accept()[0],), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
        if len(totals) != count:
            raise RuntimeError(f"{count - len(totals)} of {count} connections have failed")
        return sum(totals)

    def converse(self, host: str, port: int, source: str, seed: int, length: int, count: int) -> None:
        """So many connections one after the other: each sends `length` bytes to an echo and checks what comes back."""
        pattern = Pattern(seed)
        for number in range(count):
            with _smc_socket(host) as sock:
                sock.bind((source, 0))
                sock.connect((host, port))
                data = pattern.take(number, length)
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                got = b""
                while more := sock.recv(CHUNK):
                    got += more
                pattern.check(number, got)
                if len(got) != length:
                    raise EOFError(f"connection {number} has brought {len(got)} of {length} bytes")


def _smc_socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM, IPPROTO_SMC)


def _echo(sock: socket.socket) -> int:
    total = 0
    while data := sock.recv(CHUNK):
        sock.sendall(data)
        total += len(data)
    sock.shutdown(socket.SHUT_WR)
    return total
