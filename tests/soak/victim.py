"""The other side of the kill harness: a fork server, and the short lives of the processes that it forks.

A program of its own: ``victim.py CONTROL PAGE KEEPER``, three descriptors. A request on the control socket is a `Plan`;
a process is forked that lives by it, and both the fork server and the process tell the harness what becomes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import mmap
import os
import random
import signal
import socket
import struct
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import smcfast
from smcfast import _loop, discovery, handshake, streams  # noqa: F401 - imported before the fork, not in every life
from support.addresses import port_of
from support.channel import Channel, ChannelClosedError
from support.loops import new_loop
from support.streams import pattern

if TYPE_CHECKING:
    from types import CodeType, FrameType

RING: Final = 16 * 1024
PATTERN: Final = pattern(1 << 20)
CONFIG: Final = smcfast.SmcConfig(rmb_size=RING, handshake_timeout=2.0)

LIFE: Final = 60
"""Seconds after which nobody lives any more, whatever became of the harness."""

START, DISCOVERY, HANDSHAKE, TRANSFER, CLOSE, DONE = range(6)
PHASES: Final = ("start", "discovery", "handshake", "transfer", "close", "done")
_PHASE_OF_FILE: Final = {"discovery.py": DISCOVERY, "handshake.py": HANDSHAKE}

FATES: Final = (
    "kill",
    "kill at a step",
    "kill after fork",
    "stop and kill",
    "stop and go on",
    "exit",
    "exit at once",
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """One life and its end."""

    role: str
    """ "client" or "server"."""
    fate: str
    """One of `FATES`."""
    step: int
    """The call of a function, Python's or C's, from 1 on, at which it ends if it ends by itself; -1 for never."""
    seed: int
    loop: str
    address: tuple[str, int]
    """Where a client connects to; the host of it is where a server listens."""


class Page:
    """What a life tells about itself to the very last moment: a page that the harness shares."""

    SIZE: Final = 4096
    _LAYOUT: Final = struct.Struct("=QQQQ")

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, self.SIZE)

    def close(self) -> None:
        self._map.close()

    def clear(self) -> None:
        self._map[: self._LAYOUT.size] = bytes(self._LAYOUT.size)

    def _get(self, place: int) -> int:
        value: int = self._LAYOUT.unpack_from(self._map)[place]
        return value

    def _set(self, place: int, value: int) -> None:
        struct.pack_into("=Q", self._map, 8 * place, value)

    phase = property(lambda self: self._get(0), lambda self, value: self._set(0, value))
    """How far it came."""
    ending = property(lambda self: self._get(1), lambda self, value: self._set(1, value))
    """It has begun to end its stream in good order."""
    sent = property(lambda self: self._get(2), lambda self, value: self._set(2, value))
    """Bytes that are surely in the ring."""
    steps = property(lambda self: self._get(3), lambda self, value: self._set(3, value))
    """Calls of functions so far."""


class _Life:
    """In the forked process."""

    def __init__(self, plan: Plan, channel: Channel, page: Page, keeper: int) -> None:
        self._plan = plan
        self._channel = channel
        self._page = page
        self._keeper = keeper
        self._rng = random.Random(plan.seed)

    def run(self) -> None:
        """Live; whoever is to exit leaves its connections as they are."""
        signal.alarm(LIFE)
        loop = new_loop(self._plan.loop)
        life = self._as_client() if self._plan.role == "client" else self._as_server()
        sys.unraisablehook = _exit_all_the_same
        sys.setprofile(self._profile)
        try:
            loop.run_until_complete(life)
        finally:
            sys.setprofile(None)
        self._page.phase = DONE
        loop.close()
        gc.collect()

    def _profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        """Count a step, and see whether it is the last."""
        page = self._page
        steps = page.steps = page.steps + 1
        if event == "call":
            self._note(frame.f_code)
        if steps == self._plan.step:
            if self._plan.fate == "exit":
                raise SystemExit(0)
            if self._plan.fate == "exit at once":
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, code: CodeType) -> None:
        phase = _PHASE_OF_FILE.get(os.path.basename(code.co_filename), START)
        self._page.phase = max(self._page.phase, phase)

    async def _as_client(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._talk(*await smcfast.open_smc_connection(*self._plan.address, config=CONFIG))

    async def _as_server(self) -> None:
        arrived: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def accept(*pair: Any) -> None:
            arrived.set_result(pair)

        server = await smcfast.start_smc_server(accept, self._plan.address[0], 0, config=CONFIG)
        self._channel.send({"port": port_of(server.sockets)})
        with contextlib.suppress(ConnectionError):
            await self._talk(*await arrived)
        server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._page.phase = TRANSFER
        if self._plan.fate == "kill after fork":
            self._leave_a_child()
        await asyncio.gather(self._write(writer), self._read(reader))
        writer.close()
        await writer.wait_closed()

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        at = 0
        for _ in range(8):
            size = self._rng.choice((1, 100, 5000, RING, 2 * RING, 100_000))
            writer.write(PATTERN[at : at + size])
            at += size
            await writer.drain()
            if not writer.transport.get_write_buffer_size():
                self._page.sent = at
        self._page.phase = CLOSE
        self._page.ending = 1
        writer.write_eof()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(self._rng.choice((1000, 100_000))):
            pass

    def _leave_a_child(self) -> None:
        """One that inherits every descriptor and stays until the harness lets it go."""
        if os.fork() == 0:
            sys.setprofile(None)
            signal.alarm(LIFE)
            os.read(self._keeper, 1)
            os._exit(0)


def _exit_all_the_same(unraisable: sys.UnraisableHookArgs) -> None:
    """Python drops an exit that is raised in the callback of a weak reference, as importing has them, or in a finalizer."""
    if isinstance(unraisable.exc_value, SystemExit):
        os._exit(0)
    sys.__unraisablehook__(unraisable)


def main(control: int, page: int, keeper: int) -> None:
    """Serve forks until the harness hangs up."""
    channel = Channel(socket.socket(fileno=control))
    shared = Page(page)
    while True:
        try:
            request = channel.receive(limit=3600)
        except ChannelClosedError:
            return
        pid = os.fork()
        if pid == 0:
            # What its end leaves open is what this is about, and nobody reads it.
            warnings.simplefilter("ignore", ResourceWarning)
            plan = Plan(**request | {"address": tuple(request["address"])})
            _Life(plan, channel, shared, keeper).run()
            return
        channel.send({"pid": pid})
        # It stays a zombie until the next one comes, so that nobody else can have its pid.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        channel.send({"dead": True})
        channel.receive()
        channel.send({"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
