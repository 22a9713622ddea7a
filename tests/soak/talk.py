"""One end of a connection plays its part of the plan, checks every byte, and says how it went."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

import smcfast
from soak.plan import LARGEST, LIAR, Plan, pattern, size

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

STALL: Final = 60.0
"""Seconds without any progress after which a connection counts as hung; nobody is stopped for nearly so long."""
BACKLOG_MAX: Final = 4 << 20
"""Bytes that may wait in a writer that does not drain."""


class WrongBytesError(AssertionError):
    """What was read is not what was written."""


class Talk:
    """One end; `run` returns its report."""

    def __init__(self, plan: Plan, role: str, reader: smcfast.SmcStreamReader, writer: smcfast.SmcStreamWriter) -> None:
        self.plan = plan
        self.role = role
        self.reader = reader
        self.writer = writer
        self.own, self.peer = plan.parts(role)
        self.rng = random.Random(f"{plan.seed} {role}")
        self.sent = self.got = 0
        self.stage = "talks"
        self.end = ""
        self.refused = False

    async def run(self) -> dict[str, Any]:
        """Play the part; the writer is closed afterwards, whatever happens."""
        info: smcfast.SmcInfo = self.writer.get_extra_info("smc")
        error = None
        task = asyncio.ensure_future(self._play())
        try:
            while not (await asyncio.wait({task}, timeout=STALL))[0]:
                here = self._where()
                if here == getattr(self, "_seen", None):
                    error = f"stalled: {here}, {dict(info.counters)}, {task.get_stack()}"
                    task.cancel()
                self._seen = here
            task.result()
        except BaseException as fault:  # noqa: BLE001 - it is what the report is for
            error = error or f"{type(fault).__name__}: {fault}"
            self.writer.transport.abort()
        return {
            "seed": self.plan.seed,
            "role": self.role,
            "path": info.path,
            "reason": info.reason,
            "sent": self.sent,
            "got": self.got,
            "end": self.end,
            "refused": self.refused,
            "error": error,
        }

    def _where(self) -> tuple[int, int, str]:
        return self.sent, self.got, self.stage

    async def _play(self) -> None:
        receiving = asyncio.ensure_future(self._receive())
        sending = asyncio.ensure_future(self._send())
        try:
            # What is wrong with the bytes is told at once, although the sender may have to wait.
            await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                await receiving
            await sending
            if self.own.stays:
                await receiving
            self._end()
        finally:
            for task in (receiving, sending):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self.stage = "closes"
        with contextlib.suppress(OSError if self._on_tcp else ConnectionError):
            await self.writer.wait_closed()
        self.stage = "is closed"

    def _over(self, how: str) -> None:
        """The end of the peer's stream, or the own one, which makes an end of the peer's as well."""
        self.end = self.end or how

    def _end(self) -> None:
        self._over("own")
        if self.own.ending == "abort":
            self.writer.transport.abort()
        else:
            self.writer.close()

    # Writing.

    @property
    def _on_tcp(self) -> bool:
        """There the loops' own transports say in several ways that the peer was faster."""
        info: smcfast.SmcInfo = self.writer.get_extra_info("smc")
        return info.path == "tcp"

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except ConnectionError:
            self.refused = True
        except (OSError, RuntimeError):
            if not self._on_tcp:
                raise
            self.refused = True

    async def _send(self) -> None:
        if self.plan.echo and self.role == "server":
            return
        with self._refusals():
            while self.sent < self.own.goal:
                await self._put(size(self.rng, min(self.own.largest, self.own.goal - self.sent)))
            if self.own.ending == "eof":
                self.writer.write_eof()
            elif self.own.ending == "cancel":
                await self._interrupted(self.writer.drain())

    async def _put(self, count: int) -> None:
        data = pattern(self.own.start, self.sent, count)
        self.sent += count
        how = self.rng.randrange(5)
        if how == 0:
            self.writer.write(bytes(data))
        elif how == 1 and not self._on_tcp:  # uvloop's own transport sends what the buffer has later
            reused = bytearray(data)
            self.writer.write(reused)
            reused[:] = bytes(count)
        elif how == 2:
            self.writer.write(data)
        elif how == 3:
            await self._reserve(data)
        else:
            cut = self.rng.randrange(count + 1)
            self.writer.writelines([data[:cut], b"", data[cut:]])
        backlog = self.writer.transport.get_write_buffer_size()
        if self.rng.random() < 0.05:
            await self._interrupted(self.writer.drain())
        if backlog > BACKLOG_MAX or self.rng.random() < self.own.drains:
            await self.writer.drain()
        if self.rng.random() < 0.2:
            await asyncio.sleep(0)

    async def _reserve(self, data: bytes | memoryview) -> None:
        while data:
            with await self.writer.reserve(len(data), at_least=min(len(data), 8)) as room:
                if self.rng.random() < 0.1:
                    room[:] = bytes(len(room))  # not committed
                    continue
                count = self.rng.randrange(len(room) + 1)
                room[:count] = data[:count]
                room.commit(count)
                data = data[count:]

    # Reading.

    async def _receive(self) -> None:
        try:
            while not self.end:
                data, ended = await self._read()
                self._check(data)
                if ended:
                    self._over("eof")
                if self.plan.echo and self.role == "server":
                    await self._return(data)
                if self.rng.random() < 0.02:
                    await asyncio.sleep(self.rng.uniform(0, 0.005))  # a slow reader
        except smcfast.PeerMisbehaved:
            self._over("misbehaved")
        except OSError as fault:
            if not (self._on_tcp or isinstance(fault, ConnectionError)):
                raise
            self._over("reset")

    async def _return(self, data: bytes) -> None:
        with self._refusals():
            self.writer.write(data)
            self.sent += len(data)
            if self.end:
                self.writer.write_eof()
            elif self.rng.random() < self.own.drains:
                await self.writer.drain()

    async def _read(self) -> tuple[bytes, bool]:
        """One of the reader's methods, now and then cancelled: the data of a cancelled one comes with the next.

        Returned is also whether the stream has ended behind the data.
        """
        if self.rng.random() < 0.1:
            return await self._interrupted(self._read_once()) or (b"", False)
        return await self._read_once()

    async def _read_once(self) -> tuple[bytes, bool]:
        how = self.rng.randrange(12)
        count = size(self.rng, self.own.largest)
        try:
            if how < 4:
                data = await self.reader.read(count)
            elif how < 7:
                data = await self.reader.readexactly(count)
            elif how < 8:
                return await self._line()
            elif how < 9:
                data = await self._until(self.rng.randbytes(2))
            elif how < 10:
                buffer = bytearray(count)
                data = bytes(buffer[: await self.reader.readinto(buffer)])
            elif how < 11:
                return await self._view(count)
            else:
                data = await self.reader.read(1)
        except asyncio.IncompleteReadError as short:
            return short.partial, True
        return data, not data

    async def _view(self, count: int) -> tuple[bytes, bool]:
        with await self.reader.view(count, at_least=self.rng.randrange(count) + 1) as view:
            data = bytes(view)[: self.rng.randrange(len(view) + 1)]
            view.consume(len(data))
            return data, len(view) == 0

    async def _line(self) -> tuple[bytes, bool]:
        data = await self.reader.readline()
        if b"\n" in data[:-1]:
            raise WrongBytesError(f"two lines in one at {self.got}")
        return data, not data.endswith(b"\n")

    async def _until(self, separator: bytes) -> bytes:
        try:
            data = await self.reader.readuntil(separator)
        except asyncio.LimitOverrunError as long:
            return await self.reader.readexactly(long.consumed)
        if data.find(separator) != len(data) - 2:
            raise WrongBytesError(f"a separator too late at {self.got}")
        return data

    def _check(self, data: bytes) -> None:
        lied = self.plan.seed & LIAR
        for at in range(0, 0 if lied else len(data), LARGEST):
            piece = data[at : at + LARGEST]
            if piece != pattern(self.peer.start, self.got + at, len(piece)):
                raise WrongBytesError(f"wrong bytes between {self.got + at} and {self.got + at + len(piece)}")
        self.got += len(data)

    async def _interrupted(self, work: Coroutine[Any, Any, Any] | Any) -> Any:
        """Begin, cancel after some turns of the loop or some time, and return the result if that was too late."""
        task = asyncio.ensure_future(work)
        # Who is cancelled meanwhile does not hear what became of it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self.rng.random() < 0.7:
            for _ in range(self.rng.randrange(4)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(self.rng.uniform(0, 0.002))
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise  # It was this task that was meant.
            return None
