"""The stream's methods on the ring, one by one; each as asyncio's own would do it."""

from __future__ import annotations

import array
import asyncio
import collections.abc

import pytest

import smcfast
from smcfast import netlink
from support.streams import connected, eventually, pattern, until_refused

SMALL = smcfast.SmcConfig(rmb_size=16 * 1024)
RING = 16 * 1024


@pytest.fixture
def host(stream_host: str) -> str:
    """Streams are the same on every listener."""
    return stream_host


@pytest.mark.smoke
async def test_bytes_go_both_ways(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"ping")
        assert await server.reader.read(100) == b"ping"
        server.writer.write(b"pong")
        assert await client.reader.readexactly(4) == b"pong"


async def test_the_info_tells_both_ends(host: str) -> None:
    async with connected(host, config=SMALL) as (client, server):
        assert client.info.fallback is None
        assert (client.info.rmb_size, client.info.peer_rmb_size) == (RING, RING)
        assert client.info.gid == server.info.peer_gid
        assert client.info.peer_gid == server.info.gid
        assert client.info.link_group == server.info.link_group
        assert client.info.version == 2
        client.writer.write(b"12345")
        await server.reader.readexactly(5)
        assert client.info.counters["bytes_sent"] == server.info.counters["bytes_received"] == 5


async def test_extra_info_is_that_of_the_tcp_connection(host: str) -> None:
    async with connected(host) as (client, server):
        for one, other in ((client, server), (server, client)):
            mine, theirs = one.writer.get_extra_info("peername"), other.writer.get_extra_info("sockname")
            assert netlink.address(mine) == netlink.address(theirs)  # IPv4 has two forms where IPv6 serves it
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(6, 1, 1)  # TCP_NODELAY: libraries set it
        assert client.writer.get_extra_info("nothing", 7) == 7
        assert "path=smc-d" in repr(client.writer)


async def test_the_streams_are_asyncios(host: str) -> None:
    async with connected(host) as (client, _):
        assert isinstance(client.reader, asyncio.StreamReader)
        assert isinstance(client.writer, asyncio.StreamWriter)
        assert isinstance(client.writer.transport, asyncio.Transport)


async def test_lines(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"one\ntwo\nth")
        assert await server.reader.readline() == b"one\n"
        assert await server.reader.readline() == b"two\n"
        client.writer.write(b"ree\nlast")
        client.writer.write_eof()
        assert [line async for line in server.reader] == [b"three\n", b"last"]
        assert server.reader.at_eof()


async def test_readuntil_with_a_separator_across_pieces(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"head\r")
        reading = asyncio.ensure_future(server.reader.readuntil(b"\r\n"))
        await asyncio.sleep(0)
        client.writer.write(b"\nbody")
        assert await reading == b"head\r\n"
        assert await server.reader.read(10) == b"body"


async def test_readuntil_over_the_limit(host: str) -> None:
    async with connected(host, limit=100) as (client, server):
        client.writer.write(b"x" * 300)
        with pytest.raises(asyncio.LimitOverrunError):
            await server.reader.readuntil(b"\n")
        assert await server.reader.readexactly(300) == b"x" * 300


async def test_readexactly_at_the_end_tells_what_there_was(host: str) -> None:
    async with connected(host, config=SMALL) as (client, server):
        client.writer.write(b"short")
        client.writer.close()
        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await server.reader.readexactly(6)
        assert (caught.value.partial, caught.value.expected) == (b"short", 6)
        assert await server.reader.read(1) == b""


async def test_a_large_readexactly_at_the_end_tells_what_there_was(host: str) -> None:
    data = pattern(3 * RING)
    async with connected(host, config=SMALL) as (client, server):
        client.writer.write(data)
        client.writer.write_eof()
        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await server.reader.readexactly(4 * RING)
        assert caught.value.partial == data


async def test_read_all(host: str) -> None:
    data = pattern(10 * RING + 1)
    async with connected(host, config=SMALL) as (client, server):
        client.writer.write(data)
        client.writer.write_eof()
        assert await server.reader.read() == data
        assert await server.reader.read() == b""


async def test_counts_of_any_size(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"all")
        assert await server.reader.read(2**70) == b"all"
        client.writer.transport.set_write_buffer_limits(high=2**70)
        client.writer.write_eof()
        with pytest.raises(asyncio.IncompleteReadError):
            await server.reader.readexactly(2**70)


async def test_reads_of_nothing(host: str) -> None:
    async with connected(host) as (client, server):
        assert await server.reader.read(0) == b""
        assert await server.reader.readexactly(0) == b""
        client.writer.write(b"")
        client.writer.write(b"x")
        assert await server.reader.read(2) == b"x"
        with pytest.raises(ValueError, match="less than zero"):
            await server.reader.readexactly(-1)


@pytest.mark.parametrize(
    "data",
    [
        bytearray(b"bytearray"),
        memoryview(b"memoryview"),
        memoryview(bytearray(b"-sliced-"))[1:-1],
        array.array("I", range(1000)),
        memoryview(array.array("d", [1.5, 2.5])),
    ],
    ids=["bytearray", "memoryview", "slice", "array", "doubles"],
)
async def test_any_contiguous_buffer_is_written(data: collections.abc.Buffer, host: str) -> None:  # type: ignore[name-defined]
    async with connected(host) as (client, server):
        client.writer.write(data)
        assert await server.reader.readexactly(memoryview(data).nbytes) == bytes(memoryview(data).cast("B"))


async def test_what_is_no_contiguous_buffer_is_refused(host: str) -> None:
    async with connected(host) as (client, server):
        with pytest.raises(TypeError):
            client.writer.write("text")  # type: ignore[arg-type]
        with pytest.raises(BufferError):
            client.writer.write(memoryview(b"abcdef")[::2])
        client.writer.write(b"good")
        assert await server.reader.read(10) == b"good"


async def test_writelines(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
        assert await server.reader.readexactly(3) == b"abc"


async def test_report_23_half_close_both_ways(host: str) -> None:
    async with connected(host) as (client, server):
        assert client.writer.can_write_eof()
        client.writer.write(b"request")
        client.writer.write_eof()
        assert await server.reader.read() == b"request"
        server.writer.write(b"reply")
        server.writer.write_eof()
        assert await client.reader.read() == b"reply"


async def test_report_24_write_eof_and_write_after_the_end(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write_eof()
        client.writer.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            client.writer.write(b"x")
        server.writer.close()
        server.writer.write(b"dropped as asyncio does")
        server.writer.write_eof()
        assert server.writer.is_closing()
        assert await client.reader.read() == b""


@pytest.mark.parametrize("size", [1, RING, RING + 1, 10_000_000])
async def test_report_22_close_at_once_after_a_write_loses_nothing(size: int, host: str) -> None:
    data = pattern(size)
    async with connected(host, config=SMALL) as (client, server):
        client.writer.write(data)
        client.writer.close()
        assert await server.reader.read() == data
        await client.writer.wait_closed()


async def test_report_15_a_clean_close_is_never_a_reset(host: str) -> None:
    async with connected(host) as (client, server):
        server.writer.write(b"never read")
        client.writer.close()
        await client.writer.wait_closed()
        assert await server.reader.read() == b""


async def test_unread_bytes_can_be_read_after_the_own_close(host: str) -> None:
    async with connected(host) as (client, server):
        server.writer.write(b"for later")
        await client.reader.readexactly(4)
        client.writer.close()
        assert await client.reader.read() == b"later"


async def test_an_abort_is_a_reset(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"x")
        reading = asyncio.ensure_future(server.reader.readexactly(2))
        await asyncio.sleep(0)
        client.writer.transport.abort()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionResetError):
            await reading
        with pytest.raises(ConnectionError):
            await client.writer.drain()


async def test_what_was_drained_before_an_abort_arrives(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"last words\n")
        await client.writer.drain()
        client.writer.transport.abort()  # type: ignore[attr-defined]
        assert await server.reader.readline() == b"last words\n"
        with pytest.raises(ConnectionResetError):
            await server.reader.read(1)


async def test_writing_to_a_peer_that_has_closed_is_an_error(host: str) -> None:
    async with connected(host) as (client, server):
        server.writer.close()
        await server.writer.wait_closed()
        assert await client.reader.read() == b""
        with pytest.raises(ConnectionError):
            await until_refused(client)


async def test_what_waits_for_a_peer_that_has_closed_is_dropped(host: str) -> None:
    """Whoever finds out that it has closed: kept bytes would have the loop look after them in every round."""
    async with connected(host, config=SMALL) as (client, server):
        client.writer.write(bytes(2 * RING))
        reading = asyncio.ensure_future(client.reader.read())
        await asyncio.sleep(0)
        server.writer.close()
        assert await reading == b""
        await eventually(lambda: client.writer.transport.get_write_buffer_size() == 0)


async def test_drain_waits_for_the_reader_and_report_33_resumes_with_no_other_traffic(host: str) -> None:
    async with connected(host, config=SMALL) as (client, server):
        client.writer.write(bytes(RING + 70_000))
        draining = asyncio.ensure_future(client.writer.drain())
        for _ in range(200):
            await asyncio.sleep(0)
        assert not draining.done(), "nobody has read anything"
        assert await server.reader.readexactly(RING + 60_000) == bytes(RING + 60_000)
        await draining


async def test_the_marks_of_the_write_buffer(host: str) -> None:
    async with connected(host, config=SMALL) as (client, _):
        transport = client.writer.transport
        assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
        transport.set_write_buffer_limits(high=0)
        client.writer.write(bytes(RING + 1))
        draining = asyncio.ensure_future(client.writer.drain())
        for _ in range(200):
            await asyncio.sleep(0)
        assert not draining.done()
        transport.set_write_buffer_limits(high=100)
        await draining
        with pytest.raises(ValueError, match="high"):
            transport.set_write_buffer_limits(high=1, low=2)


async def test_a_second_reader_is_refused(host: str) -> None:
    async with connected(host) as (client, server):
        first = asyncio.ensure_future(server.reader.read(1))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another coroutine is already waiting"):
            await server.reader.read(1)
        client.writer.write(b"x")
        assert await first == b"x"


async def test_reads_and_drains_are_coroutines_for_asyncio(host: str) -> None:
    async with connected(host) as (client, server):
        reading = server.reader.read(1)
        assert isinstance(reading, collections.abc.Coroutine)
        reading.close()
        assert isinstance(client.writer.drain(), collections.abc.Coroutine)
        task = asyncio.create_task(server.reader.read(1))
        client.writer.write(b"a")
        assert await task == b"a"
        client.writer.write(b"b")
        assert await asyncio.wait_for(server.reader.readexactly(1), 5) == b"b"
        results = await asyncio.gather(client.writer.drain(), client.writer.drain())
        assert results == [None, None]


async def test_an_awaitable_is_awaited_once(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"ab")
        reading = server.reader.read(1)
        assert await reading == b"a"
        with pytest.raises(RuntimeError, match="already awaited"):
            await reading
        assert await server.reader.read(1) == b"b"


async def test_a_stream_that_always_has_data_lets_others_run(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(bytes(10_000))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        for _ in range(10_000):
            await server.reader.read(1)
        task.cancel()
        assert turns >= 100


@pytest.mark.parametrize("spin_us", [0, 50])
async def test_all_sizes_around_pages_and_rings(spin_us: int, host: str) -> None:
    config = smcfast.SmcConfig(rmb_size=RING, spin_us=spin_us)
    sizes = [base + step for base in (4096, RING // 2, RING, 2 * RING) for step in (-1, 0, 1)]
    async with connected(host, config=config) as (client, server):
        for number, size in enumerate(sizes):
            data = pattern(size, number)
            client.writer.write(data)
            assert await server.reader.readexactly(size) == data
            server.writer.write(data)
            assert await client.reader.readexactly(size) == data


async def test_rings_of_different_sizes(host: str) -> None:
    large = smcfast.SmcConfig(rmb_size=256 * 1024)
    async with connected(host, config=SMALL, server_config=large) as (client, server):
        assert (client.info.rmb_size, client.info.peer_rmb_size) == (RING, 256 * 1024)
        assert (server.info.rmb_size, server.info.peer_rmb_size) == (256 * 1024, RING)
        data = pattern(700_000)
        client.writer.write(data)
        server.writer.write(data)
        assert await server.reader.readexactly(700_000) == data
        assert await client.reader.readexactly(700_000) == data


@pytest.mark.parametrize("size", [2, 3 * RING])
async def test_a_broken_stream_keeps_what_a_readexactly_has_not_returned(size: int, host: str) -> None:
    """An abort in the middle of a message, small or larger than the ring: an error, and the bytes are still there."""
    async with connected(host, config=SMALL) as (client, server):
        data = pattern(size)
        client.writer.write(data[: size // 2])
        reading = asyncio.ensure_future(server.reader.readexactly(size))
        await eventually(lambda: not client.writer.transport.get_write_buffer_size())
        client.writer.transport.abort()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionResetError):
            await reading
        assert await server.reader.readexactly(size // 2) == data[: size // 2]
        with pytest.raises(ConnectionResetError):
            await server.reader.read(1)


async def test_bytes_over_tcp_are_a_fault_and_no_end(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"in order")
        server.writer.transport._sock.send(b"x")  # type: ignore[attr-defined]
        await eventually(client.writer.is_closing)
        for _ in range(2):
            with pytest.raises(smcfast.PeerMisbehaved, match="TCP"):
                await client.reader.read(1)
        assert not client.reader.at_eof()
        with pytest.raises(smcfast.PeerMisbehaved):
            await client.writer.wait_closed()


async def test_a_second_reader_takes_nothing_from_a_first_that_waits(host: str) -> None:
    async with connected(host) as (client, server):
        first = asyncio.ensure_future(server.reader.readexactly(10))
        await asyncio.sleep(0)
        client.writer.write(b"01234")
        with pytest.raises(RuntimeError, match="another coroutine is already waiting"):
            await server.reader.read(3)
        client.writer.write(b"56789")
        assert await first == b"0123456789"


@pytest.mark.parametrize("size", [100, 3 * RING])
async def test_a_close_under_a_readexactly_tells_all_that_there_was(size: int, host: str) -> None:
    data = pattern(size // 2)
    async with connected(host, config=SMALL) as (client, server):
        reading = asyncio.ensure_future(server.reader.readexactly(size))
        client.writer.write(data)
        await eventually(lambda: not client.writer.transport.get_write_buffer_size())
        server.writer.close()
        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await reading
        assert caught.value.partial == data
        assert await server.reader.read() == b""


async def test_a_readexactly_cancelled_after_a_close_keeps_the_order(host: str) -> None:
    data = pattern(2 * RING)
    async with connected(host, config=SMALL) as (client, server):
        reading = asyncio.ensure_future(server.reader.readexactly(3 * RING))
        client.writer.write(data)
        await eventually(lambda: not client.writer.transport.get_write_buffer_size())
        client.writer.write(b"last")
        await eventually(lambda: not client.writer.transport.get_write_buffer_size())
        server.writer.close()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await server.reader.read() == data + b"last"
