"""The transport with other protocols than the streams' own: it hands the bytes over."""

from __future__ import annotations

import asyncio

import pytest

import smcfast
from support.streams import End, connected, eventually, pattern

SMALL = smcfast.SmcConfig(rmb_size=16 * 1024)


@pytest.fixture
def host(stream_host: str) -> str:
    """Streams are the same on every listener."""
    return stream_host


class Collector(asyncio.Protocol):
    """Collects what it is handed."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = asyncio.get_running_loop().create_future()
        self.lost = asyncio.get_running_loop().create_future()
        self.paused = 0

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.ended.set_result(None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(exc)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.paused -= 1


class Buffered(Collector, asyncio.BufferedProtocol):
    """The same through a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._space = bytearray(1000)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._space[:nbytes]


def transport_of(end: End) -> asyncio.Transport:
    transport = end.writer.transport
    assert isinstance(transport, asyncio.Transport)
    return transport


async def receives(host: str, protocol: Collector) -> None:
    data = pattern(3_000_000)
    async with connected(host) as (client, server):
        client.writer.write(data[:10])
        transport_of(server).set_protocol(protocol)
        assert transport_of(server).get_protocol() is protocol
        client.writer.write(data[10:])
        client.writer.write_eof()
        await protocol.ended
        assert protocol.data == data
        transport_of(server).write(b"reply")
        assert await client.reader.readexactly(5) == b"reply"
        transport_of(server).close()
        assert await protocol.lost is None


async def test_a_protocol_is_handed_all_data_and_the_end(host: str) -> None:
    await receives(host, Collector())


async def test_a_buffered_protocol_too(host: str) -> None:
    await receives(host, Buffered())


async def test_an_empty_buffer_of_a_protocol_is_its_error_and_no_end(host: str) -> None:
    class Empty(Buffered):
        def get_buffer(self, sizehint: int) -> bytearray:
            return bytearray()

    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    async with connected(host) as (client, server):
        protocol = Empty()
        transport_of(server).set_protocol(protocol)
        client.writer.write(b"x")
        assert "empty buffer" in str(await protocol.lost)
        assert not protocol.ended.done()


async def test_reading_pauses_and_resumes(host: str) -> None:
    async with connected(host) as (client, server):
        transport, protocol = transport_of(server), Collector()
        transport.set_protocol(protocol)
        assert transport.is_reading()
        transport.pause_reading()
        transport.pause_reading()
        assert not transport.is_reading()
        client.writer.write(b"held back")
        for _ in range(50):
            await asyncio.sleep(0)
        assert protocol.data == b""
        transport.resume_reading()
        await eventually(lambda: protocol.data == b"held back")
        transport.close()
        await protocol.lost


async def test_writing_pauses_and_resumes_the_protocol(host: str) -> None:
    async with connected(host) as (client, server):
        transport, protocol = transport_of(client), Collector()
        transport.set_protocol(protocol)
        size = 1024 * 1024 + 65 * 1024
        transport.write(bytes(size))
        assert protocol.paused == 1
        assert await server.reader.readexactly(size) == bytes(size)
        await eventually(lambda: protocol.paused == 0)
        transport.close()
        assert await protocol.lost is None


async def test_writing_resumes_whoever_has_moved_the_backlog_on(host: str) -> None:
    """The last of the backlog leaves with a write, or with a drain that polls: the protocol must hear of it."""
    for moved_by in ("write", "drain"):
        async with connected(host, config=SMALL) as (client, server):
            transport, protocol = transport_of(client), Collector()
            transport.set_protocol(protocol)
            transport.write(bytes(16 * 1024 + 65 * 1024))
            assert protocol.paused == 1
            draining = asyncio.ensure_future(client.writer.drain()) if moved_by == "drain" else None
            left = 81 * 1024
            while left:
                left -= len(await server.reader.read(left))
                if moved_by == "write":
                    transport.write(b"")
            await eventually(lambda protocol=protocol: protocol.paused == 0)  # type: ignore[misc]
            if draining is not None:
                await draining
            transport.close()


async def test_a_protocol_is_not_called_from_its_own_calls(host: str) -> None:
    class Nested(Collector):
        depth = deepest = 0

        def data_received(self, data: bytes) -> None:
            self.depth += 1
            self.deepest = max(self.deepest, self.depth)
            super().data_received(data)
            transport_of(server).pause_reading()
            client.writer.write(b"x" * (len(self.data) < 10))
            transport_of(server).resume_reading()
            self.depth -= 1

    async with connected(host) as (client, server):
        protocol = Nested()
        client.writer.write(b"x")
        transport_of(server).set_protocol(protocol)
        assert protocol.data == b""
        await eventually(lambda: len(protocol.data) == 10)
        assert protocol.deepest == 1
        transport_of(server).close()
        await protocol.lost


async def test_a_protocol_that_raises_loses_its_connection(host: str) -> None:
    class Broken(Collector):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    async with connected(host) as (client, server):
        protocol = Broken()
        transport_of(server).set_protocol(protocol)
        client.writer.write(b"x")
        assert isinstance(await protocol.lost, ZeroDivisionError)
        assert isinstance(reports[0]["exception"], ZeroDivisionError)


async def test_a_protocol_that_cannot_be_paused_is_reported_and_goes_on(host: str) -> None:
    class Stubborn(Collector):
        def pause_writing(self) -> None:
            raise ZeroDivisionError

    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    async with connected(host) as (client, server):
        transport_of(client).set_protocol(Stubborn())
        size = 1024 * 1024 + 65 * 1024
        transport_of(client).write(bytes(size))
        assert reports[0]["message"] == "protocol.pause_writing() failed"
        assert await server.reader.readexactly(size) == bytes(size)
        transport_of(client).close()


async def test_an_end_without_interest_closes(host: str) -> None:
    class Uninterested(Collector):
        def eof_received(self) -> bool:
            return False

    async with connected(host) as (client, server):
        protocol = Uninterested()
        transport_of(server).set_protocol(protocol)
        client.writer.write_eof()
        assert await protocol.lost is None
        assert await client.reader.read() == b""
