"""Field reports about buffers and about being what asyncio's streams are (section I)."""

from __future__ import annotations

import array
import asyncio
import ctypes
import inspect
import mmap
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio

import smcfast
from support.addresses import port_of, silent
from support.streams import connected, eventually, pattern
from support.tls import client_context, server_context

if TYPE_CHECKING:
    from collections.abc import Callable

RING = 16 * 1024
SMALL = smcfast.SmcConfig(rmb_size=RING)


@pytest.mark.parametrize("size", [1, 100, RING, RING + 1, 300_000])
@pytest.mark.parametrize("how", ["write", "writelines", "slice"])
async def test_report_75_a_buffer_may_be_changed_grown_and_cleared_at_once(size: int, how: str, host: str) -> None:
    """The bytes are those of the call, also of those that wait behind the ring; no export keeps the buffer from resizing."""
    async with connected(host, config=SMALL) as (client, server):
        data = bytearray(pattern(size))
        if how == "write":
            client.writer.write(data)
        elif how == "writelines":
            client.writer.writelines([data, memoryview(data)[:0]])
        else:
            with memoryview(data) as view:
                client.writer.write(view[:])
        data[:] = bytes(size)
        data.extend(b"grown")
        data.clear()
        assert await server.reader.readexactly(size) == pattern(size)


async def test_report_76_views_of_results_may_live_as_long_as_they_like(host: str) -> None:
    """Of each method, small and larger than the ring: no later read needs the memory of an earlier result."""
    data = b"".join(b"%07d\n" % number for number in range(8_000))
    async with connected(host, config=SMALL) as (client, server):
        client.writer.write(data)
        client.writer.write_eof()
        read = server.reader
        views = [
            memoryview(await read.read(10)),
            memoryview(await read.readexactly(6)),
            memoryview(await read.readline()),
        ]
        views += [memoryview(await read.readuntil(b"7\n")), memoryview(await read.readexactly(2 * RING))]
        views += [memoryview(await read.read(3)), memoryview(await read.read())]
        assert b"".join(views) == data


class Into(asyncio.BufferedProtocol):
    """Receives into one array, from its beginning to its end."""

    def __init__(self, target: Any) -> None:
        self._view = memoryview(target).cast("B")
        self.filled = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.filled += nbytes


def same_memory_in_other_shapes(values: array.array[float]) -> list[Any]:
    """Objects that export a contiguous buffer, none of them bytes: an array, a matrix, a C array, a mapping."""
    data = values.tobytes()
    pages = mmap.mmap(-1, len(data))
    pages[:] = data
    rows = memoryview(values).cast("B").cast("d", (len(values) // 10, 10))
    return [values, rows, (ctypes.c_double * len(values))(*values), pages]


async def test_report_77_arrays_go_out_and_come_in_without_a_copy_of_ours(host: str) -> None:
    """What has a contiguous buffer is written as it is, and a BufferedProtocol gets the ring's bytes into its own memory."""
    values = array.array("d", (number / 7 for number in range(10_000)))
    for sent in same_memory_in_other_shapes(values):
        async with connected(host, config=SMALL) as (client, server):
            received = array.array("d", bytes(len(values) * values.itemsize))
            protocol = Into(received)
            server.writer.transport.set_protocol(protocol)
            client.writer.write(sent)
            await eventually(lambda protocol=protocol: protocol.filled == 8 * len(values))  # type: ignore[misc]
            assert received == values
            assert client.info.counters["bytes_sent"] == 8 * len(values)


def test_report_78_every_argument_of_asyncios_functions_is_one_of_ours() -> None:
    for ours, streams, options in (
        (smcfast.open_smc_connection, asyncio.open_connection, asyncio.BaseEventLoop.create_connection),
        (smcfast.start_smc_server, asyncio.start_server, asyncio.BaseEventLoop.create_server),
    ):
        theirs = {*inspect.signature(streams).parameters, *inspect.signature(options).parameters}
        assert theirs - {"self", "protocol_factory", "kwds"} <= set(inspect.signature(ours).parameters)


class Database:
    """Speaks enough of the protocol of redis for a client of its makers: SET and GET, and an error for all else."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._values: dict[bytes, bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.paths.append(writer.get_extra_info("smc").path)
        while line := await reader.readline():
            words = [await self._word(reader) for _ in range(int(line[1:]))]
            writer.write(self._answer(words))
            await writer.drain()
        writer.close()

    @staticmethod
    async def _word(reader: asyncio.StreamReader) -> bytes:
        size = int((await reader.readuntil(b"\r\n"))[1:])
        return (await reader.readexactly(size + 2))[:-2]

    def _answer(self, words: list[bytes]) -> bytes:
        match [words[0].upper(), *words[1:]]:
            case [b"SET", key, value]:
                self._values[key] = value
                return b"+OK\r\n"
            case [b"GET", key] if (value := self._values.get(key)) is not None:
                return b"$%d\r\n%b\r\n" % (len(value), value)
            case [b"GET", _]:
                return b"$-1\r\n"
        return b"-ERR unknown command\r\n"


async def test_report_78_the_client_of_redis_runs_on_it(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """It is unchanged, and calls asyncio.open_connection; what it gets there is a drop-in for it."""
    database = Database()
    async with await smcfast.start_smc_server(database.serve, host, 0) as server:
        monkeypatch.setattr(asyncio, "open_connection", smcfast.open_smc_connection)
        async with redis.asyncio.Redis(host=host, port=port_of(server.sockets), protocol=2) as client:
            large = pattern(3_000_000)
            assert await client.set("key", large) is True
            assert await client.get("key") == large
            assert await client.get("nothing") is None
            async with client.pipeline(transaction=False) as pipe:
                for number in range(100):
                    pipe.set(f"key{number}", number).get(f"key{number}")
                assert (await pipe.execute())[1::2] == [b"%d" % number for number in range(100)]
        await eventually(lambda: not server._clients)
    assert set(database.paths) == {"smc-d"}


async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()
    await writer.wait_closed()


def two_addresses(first: tuple[str, int], second: tuple[str, int]) -> Callable[..., Any]:
    """A resolver for a name that has both."""

    async def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (first, second)]

    return resolve


@pytest.mark.parametrize("path", ["smc-d", "tcp"])
async def test_report_79_happy_eyeballs_pass_over_a_silent_address(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both paths: the second address answers while the first one keeps silent."""
    start: Callable[..., Any] = smcfast.start_smc_server if path == "smc-d" else asyncio.start_server
    async with await start(greet, "127.0.0.1", 0) as server:
        with silent() as blocked:
            target = "127.0.0.1", port_of(server.sockets)
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two_addresses(blocked, target))
            reader, writer = await smcfast.open_smc_connection("two.test", 1, happy_eyeballs_delay=0.01, interleave=1)
            assert writer.get_extra_info("smc").path == path
            assert writer.get_extra_info("peername") == target
            assert await reader.read() == b"hello"
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize("path", ["smc-d", "tcp"])
async def test_report_80_tls_from_the_start_and_later_over_any_path(path: str, host: str) -> None:
    """What TLS needs of a transport is there: test_tls.py has the rest."""

    async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"STARTTLS\n"
        writer.write(b"go on\n")
        await writer.start_tls(server_context())
        await greet(reader, writer)

    config = smcfast.SmcConfig(paths=("smc-d",) if path == "smc-d" else ())
    async with (
        await smcfast.start_smc_server(greet, host, 0, ssl=server_context()) as secure,
        await smcfast.start_smc_server(upgrade, host, 0) as later,
    ):
        target = host, port_of(secure.sockets)
        reader, writer = await smcfast.open_smc_connection(*target, ssl=client_context(), config=config)
        await is_greeted_in_tls(reader, writer, path)
        with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.test"):
            await smcfast.open_smc_connection(
                *target, ssl=client_context(), server_hostname="other.test", config=config
            )
        reader, writer = await smcfast.open_smc_connection(host, port_of(later.sockets), config=config)
        writer.write(b"STARTTLS\n")
        assert await reader.readline() == b"go on\n"
        await writer.start_tls(client_context(), server_hostname="localhost")
        await is_greeted_in_tls(reader, writer, path)


async def is_greeted_in_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    assert writer.get_extra_info("smc").path == path
    assert writer.get_extra_info("ssl_object") is not None
    assert await reader.read() == b"hello"
    writer.close()
    await writer.wait_closed()
