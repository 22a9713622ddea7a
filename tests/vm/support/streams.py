"""Streams of smcfast that do in a process of their own what they are told, with the steps of `peers`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import smcfast
from support.channel import ChannelClosedError
from vm.support.pattern import Pattern
from vm.support.peers import CHUNK, LONG

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel

Stream = tuple[smcfast.SmcStreamReader, smcfast.SmcStreamWriter]
_BACKLOG: Final = 512
_LIMIT: Final = 1024
"""A close with twice as much unread is an abort."""


async def main(parent: Channel, settings: dict[str, Any]) -> None:
    """The peer's process: carry out steps until the test hangs up or kills it. `settings` are fields of an `SmcConfig`."""
    streams = Streams(smcfast.SmcConfig(**settings))
    running = set()

    async def carry_out(number: int, step: Callable[..., Any], args: list[Any]) -> None:
        try:
            result = {"value": await step(*args)}
        except Exception as error:  # noqa: BLE001 - told to the test
            result = {"errno": getattr(error, "errno", None) or 0, "error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError, TimeoutError):
            parent.send([number, result])

    while True:
        try:
            number, name, args = await parent.areceive(LONG)
        except ChannelClosedError:
            return
        task = asyncio.create_task(carry_out(number, getattr(streams, name), args))
        running.add(task)
        task.add_done_callback(running.discard)


class Streams:
    """The steps, as `peers` has them."""

    def __init__(self, config: smcfast.SmcConfig) -> None:
        self._config = config
        self._streams: dict[int, Stream] = {}
        self._listeners: dict[int, tuple[smcfast.SmcServer, asyncio.Queue[Stream]]] = {}

    def _add(self, stream: Stream) -> int:
        number = len(self._streams) + 1
        self._streams[number] = stream
        return number

    async def listen(self, host: str, _backlog: int) -> tuple[int, int]:
        """On a free port of the address: the listener and the port."""
        accepted: asyncio.Queue[Stream] = asyncio.Queue()

        def accept(reader: smcfast.SmcStreamReader, writer: smcfast.SmcStreamWriter) -> None:
            accepted.put_nowait((reader, writer))

        server = await smcfast.start_smc_server(accept, host, 0, limit=_LIMIT, config=self._config, backlog=_BACKLOG)
        number = len(self._listeners) + 1
        self._listeners[number] = (server, accepted)
        return number, server.sockets[0].getsockname()[1]

    async def accept(self, listener: int) -> int:
        """The next connection."""
        return self._add(await self._listeners[listener][1].get())

    async def greet(self, listener: int, seed: int, length: int) -> int:
        """Accept the next connection, and speak before anybody else can."""
        number = await self.accept(listener)
        await self.send(number, seed, length)
        return number

    async def connect(self, host: str, port: int, source: str) -> int:
        """From the address `source`."""
        local = (source, 0)
        return self._add(
            await smcfast.open_smc_connection(host, port, limit=_LIMIT, local_addr=local, config=self._config)
        )

    async def path(self, sock: int) -> str:
        """What carries it."""
        info: smcfast.SmcInfo = self._streams[sock][1].get_extra_info("smc")
        return info.path

    async def send(self, sock: int, seed: int, length: int, at: int = 0, chunk: int = CHUNK) -> None:
        """Write `length` bytes of the pattern from position `at` on, `chunk` at a time."""
        pattern, writer = Pattern(seed), self._streams[sock][1]
        for start in range(at, at + length, chunk):
            writer.write(pattern.take(start, min(chunk, at + length - start)))
            await writer.drain()

    async def receive(
        self, sock: int, seed: int, length: int, at: int = 0, chunk: int = CHUNK, pause_s: float = 0.0
    ) -> None:
        """Read exactly `length` bytes and check them; a slow reader reads `chunk` at most and pauses each time."""
        pattern, reader, end = Pattern(seed), self._streams[sock][0], at + length
        while at < end:
            data = await reader.read(min(chunk, end - at))
            if not data:
                raise EOFError(f"the stream ends {end - at} bytes too early")
            pattern.check(at, data)
            at += len(data)
            if pause_s:
                await asyncio.sleep(pause_s)

    async def receive_to_end(self, sock: int, seed: int, at: int = 0) -> int:
        """Read to the end of the stream and check; how many bytes."""
        pattern, begun = Pattern(seed), at
        while data := await self._streams[sock][0].read(CHUNK):
            pattern.check(at, data)
            at += len(data)
        return at - begun

    async def receive_some(self, sock: int, length: int) -> str:
        """One read of at most so many bytes, in hexadecimal; "" at the end."""
        return (await self._streams[sock][0].read(length)).hex()

    async def half_close(self, sock: int) -> None:
        """Shut down writing."""
        self._streams[sock][1].write_eof()

    async def close(self, sock: int) -> None:
        """Close; with unread data that is an abort."""
        self._streams[sock][1].close()

    async def serve_echo(self, listener: int, count: int) -> int:
        """Accept so many connections and echo each; the bytes of all, when the last has ended."""

        async def serve(reader: smcfast.SmcStreamReader, writer: smcfast.SmcStreamWriter) -> int:
            total = 0
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
                total += len(data)
            writer.close()
            await writer.wait_closed()
            return total

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(serve(*await self._listeners[listener][1].get())) for _ in range(count)]
        return sum(task.result() for task in tasks)
