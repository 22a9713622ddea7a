"""One forward of a proxy: who connects to one end is connected to the other, and bytes go both ways until both have ended.

An end of one direction is passed on as such, and the other direction goes on. Everything else is passed on as a reset: sockets
of TCP are set so that closing them resets, and only both ends together take that back. So whatever becomes of this process,
nobody takes a part of a stream for the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final

from smcfast import ends, log

if TYPE_CHECKING:
    from collections.abc import Callable

    from smcfast.ends import End, Listener, Streams
    from smcfast.info import SmcInfo

_CHUNK: Final = 64 * 1024
_RESET: Final = struct.pack("=ii", 1, 0)
_ORDERLY: Final = struct.pack("=ii", 0, 0)


@dataclass
class Way:
    """One direction of a connection."""

    size: int = 0
    """Bytes that were handed on."""

    async def move(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand on what comes, and its end behind it. What the taker does not take yet is not read either.

        :raises OSError: one of the two connections is lost.
        """
        while data := await reader.read(_CHUNK):
            writer.write(data)
            self.size += len(data)
            await writer.drain()
        if writer.transport.get_write_buffer_size():
            # The end leaves at once, and not behind what this process holds. A taker who has closed needs none.
            writer.transport.set_write_buffer_limits(high=0)
            await writer.drain()
        writer.write_eof()


@dataclass
class Passage:
    """One connection through a forward."""

    forward: str
    peer: str
    infos: list[SmcInfo] = field(default_factory=list)
    """What its smc: ends tell."""
    there: Way = field(default_factory=Way)
    """From the end that was listened at to the other one."""
    back: Way = field(default_factory=Way)
    seconds: float = 0.0
    connected: bool = False
    refused: bool = False
    """There were as many connections as there may be."""
    fault: str | None = None
    """Why it did not end in good order."""

    async def go(self, accepted: Streams, connected: Streams) -> None:
        """Move bytes both ways until both have ended.

        :raises OSError: one of the two connections was lost.
        """
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self.there.move(accepted[0], connected[1])),
            loop.create_task(self.back.move(connected[0], accepted[1])),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Places:
    """The connections of all forwards together, and how many there may be."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def full(self) -> bool:
        """May there be no further one?"""
        return len(self.tasks) >= self.limit


class Forward:
    """Listens at one end and connects to the other."""

    def __init__(self, pair: tuple[End, End], places: Places, patience: float, tell: Callable[[Passage], None]) -> None:
        """:param patience: seconds that connecting may take.

        :param tell: gets every connection when it is over, and those that were refused.
        """
        self._listen, self._connect = pair
        self._places = places
        self._patience = patience
        self._tell = tell
        self._listener: Listener | None = None

    def __str__(self) -> str:
        return f"{self._listen}={self._connect}"

    async def start(self, mode: int) -> list[str]:
        """Listen, and say where.

        :param mode: of a unix socket's file.
        :raises OSError: nobody can listen there.
        """
        self._listener = await ends.listen(self._listen, self._accept, mode)
        return self._listener.names

    def close(self) -> None:
        """Accept nobody any more; connections go on."""
        if self._listener is not None:
            self._listener.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passage = Passage(str(self), _peer(writer))
        _prepare(passage, writer)
        if self._places.full:
            passage.refused, passage.fault = True, f"there are {self._places.limit} connections already"
            writer.transport.abort()
            self._tell(passage)
            return
        # Not left to the server, whose handlers' tasks are its own affair.
        task = asyncio.get_running_loop().create_task(self._pass(passage, (reader, writer)))
        self._places.tasks.add(task)
        task.add_done_callback(self._places.tasks.discard)

    async def _pass(self, passage: Passage, accepted: Streams) -> None:
        began = monotonic()
        writers = [accepted[1]]
        passage.fault = "an error of the proxy"
        try:
            async with asyncio.timeout(self._patience):
                connected = await ends.connect(self._connect)
            passage.connected = True
            writers.append(connected[1])
            _prepare(passage, connected[1])
            await passage.go(accepted, connected)
            passage.fault = None
        except OSError as error:  # also the TimeoutError
            passage.fault = error.strerror or str(error) or f"no answer within {self._patience:g} s"
        except asyncio.CancelledError:
            passage.fault = "cut off at the end of the proxy"
        finally:
            passage.seconds = monotonic() - began
            try:
                await _end(writers, orderly=passage.fault is None)
            finally:
                self._tell(passage)  # who hears of it may connect again: this place is free


def _peer(writer: asyncio.StreamWriter) -> str:
    try:
        return log.name(writer.get_extra_info("peername"))
    except (OSError, AttributeError):  # uvloop's, when it is lost already
        return log.name(None)


def _prepare(passage: Passage, writer: asyncio.StreamWriter) -> None:
    """Let a socket whose own bytes are the stream end with a reset, and notice a peer whose host is gone."""
    info: SmcInfo | None = writer.get_extra_info("smc")
    if info is not None:
        passage.infos.append(info)
    if info is None or info.path == "tcp":
        _set(writer, socket.SO_LINGER, _RESET)
        _set(writer, socket.SO_KEEPALIVE, 1)


def _set(writer: asyncio.StreamWriter, option: int, value: bytes | int) -> None:
    sock = writer.get_extra_info("socket")
    if sock is None:
        return  # It is lost already, and uvloop has no socket then, or one that raises ValueError.
    with contextlib.suppress(OSError, ValueError):
        sock.setsockopt(socket.SOL_SOCKET, option, value)


async def _end(writers: list[asyncio.StreamWriter], *, orderly: bool) -> None:
    """Close all, or reset all."""
    for writer in writers:
        if orderly:
            _set(writer, socket.SO_LINGER, _ORDERLY)
            writer.close()
        else:
            writer.transport.abort()
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()
