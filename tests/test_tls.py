"""TLS from the start and later, over every path: what asyncio's does over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from support.addresses import port_of
from support.interrupt import cancelled_at
from support.process import descriptors
from support.protocols import PATHS, BufferedRecorder, Recorder, config_of, joined
from support.streams import End, connected, echo, eventually, pattern, turns
from support.tls import client_context, server_context

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable

RING = 16 * 1024
SERVER = server_context()
CLIENT = client_context()


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    """The path that the connection takes, which is asserted."""
    name: str = request.param
    return name


@contextlib.asynccontextmanager
async def serving(
    path: str, handler: Callable[..., Any], host: str = "127.0.0.1", **options: Any
) -> AsyncIterator[tuple[str, int]]:
    """Where a server of streams is; all its connections have ended at the end."""
    server = await smcfast.start_smc_server(handler, host, 0, config=config_of(path, rmb_size=RING), **options)
    async with server:
        yield host, port_of(server.sockets)
    await eventually(lambda: not (server._clients or server._held_clients or server._welcome.pending))


async def opened(path: str, target: tuple[str, int], **options: Any) -> End:
    end = End(*await smcfast.open_smc_connection(*target, config=config_of(path, rmb_size=RING), **options))
    assert end.info.path == path
    return end


def is_encrypted(end: End) -> bool:
    return end.writer.get_extra_info("ssl_object") is not None


async def exchanges(end: End, size: int = 300_000) -> None:
    """Send what is echoed, and compare."""
    data = pattern(size)
    end.writer.write(data)
    assert await end.reader.readexactly(size) == data


async def closed(end: End) -> None:
    end.writer.close()
    await end.writer.wait_closed()


async def test_streams_in_tls_from_the_start(path: str, host: str) -> None:
    async with serving(path, echo, host, ssl=SERVER) as target:
        end = await opened(path, target, ssl=CLIENT)
        assert is_encrypted(end)
        assert end.writer.get_extra_info("peercert")["subject"] == ((("commonName", "localhost"),),)
        assert end.writer.get_extra_info("cipher")
        assert end.writer.get_extra_info("sslcontext") is CLIENT
        assert end.writer.get_extra_info("peername")[:2] == (end.writer.get_extra_info("peername")[0], target[1])
        assert end.info.setup_us is not None
        await exchanges(end)
        await closed(end)


async def test_nothing_goes_through_the_ring_in_the_clear() -> None:
    """What the endpoint of the other end gets are records of TLS."""
    taken: list[bytes] = []

    class Tap(Recorder):
        def data_received(self, data: bytes) -> None:
            taken.append(data)

    async with await smcfast.create_smc_server(Tap, "127.0.0.1", 0, config=config_of("smc-d")) as server:
        opening = asyncio.ensure_future(opened("smc-d", ("127.0.0.1", port_of(server.sockets)), ssl=CLIENT))
        await eventually(lambda: bool(taken))
        assert taken[0][:2] == b"\x16\x03", "a handshake record"
        opening.cancel()
        await asyncio.wait([opening])
        for transport in list(server._clients):
            transport.abort()
        await eventually(lambda: not server._clients)


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
async def test_protocols_in_tls_from_the_start(kind: type[Recorder], path: str) -> None:
    data = pattern(500_000)
    tls = {"client_tls": {"ssl": CLIENT}, "server_tls": {"ssl": SERVER}}
    async with joined(path, client=kind, server=kind, **tls) as (client, server, _):  # type: ignore[arg-type]
        assert client.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        assert not client.transport.can_write_eof()
        client.transport.write(data)
        server.transport.writelines([data[:7], data[7:]])
        await eventually(lambda: len(client.data) == len(server.data) == len(data))
        assert client.data == server.data == data
        client.transport.close()
        await eventually(lambda: client.is_lost and server.is_lost)
        assert (client.exc, server.exc) == (None, None)


async def test_a_slow_reader_pauses_the_writer(path: str) -> None:
    config = config_of(path, rmb_size=RING)
    tls = {"client_tls": {"ssl": CLIENT}, "server_tls": {"ssl": SERVER}}
    async with joined(path, config=config, **tls) as (client, server, _):  # type: ignore[arg-type]
        server.transport.pause_reading()
        size = 0
        while "pause" not in client.calls:
            client.transport.write(bytes(500_000))
            size += 500_000
            await asyncio.sleep(0)
        await turns()
        assert "resume" not in client.calls
        server.transport.resume_reading()
        await eventually(lambda: len(server.data) == size)
        assert "resume" in client.calls


async def test_a_close_sends_what_was_written(path: str) -> None:
    data = pattern(500_000)

    async def give(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.close()

    async with serving(path, give, ssl=SERVER) as target:
        end = await opened(path, target, ssl=CLIENT)
        assert await end.reader.read() == data
        await closed(end)


async def test_an_abort_is_heard(path: str) -> None:
    tls = {"client_tls": {"ssl": CLIENT}, "server_tls": {"ssl": SERVER}}
    async with joined(path, **tls) as (client, server, _):  # type: ignore[arg-type]
        client.transport.abort()
        await eventually(lambda: client.is_lost and server.is_lost)
        assert client.exc is None
        assert server.exc is None or isinstance(server.exc, ConnectionResetError)


async def test_a_server_ends_its_connections_in_good_order(path: str) -> None:
    tls = {"client_tls": {"ssl": CLIENT}, "server_tls": {"ssl": SERVER}}
    async with joined(path, **tls) as (client, server, listener):  # type: ignore[arg-type]
        server.transport.write(b"last words")
        listener.close()
        listener.close_clients()
        await listener.wait_closed()
        await eventually(lambda: client.is_lost and server.is_lost)
        assert client.data == b"last words"
        assert (client.exc, server.exc) == (None, None)


@pytest.mark.usefixtures("nothing_is_left")
async def test_certificates_that_are_refused(path: str) -> None:
    """As asyncio: an SSLCertVerificationError that says why. The server goes on, and nothing is left."""
    async with serving(path, echo, ssl=SERVER) as target:
        for options, why in (
            ({"ssl": CLIENT, "server_hostname": "other.test"}, r"other\.test"),
            ({"ssl": True}, "self-signed"),
        ):
            with pytest.raises(ssl.SSLCertVerificationError, match=why):
                await opened(path, target, **options)
        end = await opened(path, target, ssl=CLIENT)
        await exchanges(end, 10)
        await closed(end)


async def test_a_server_may_refuse_its_client(path: str) -> None:
    wants = server_context()
    wants.verify_mode = ssl.CERT_REQUIRED
    old = client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2  # the client hears of the refusal in the handshake
    async with serving(path, echo, ssl=wants) as target:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await opened(path, target, ssl=old)


async def test_a_plain_client_of_a_tls_server_is_dropped(path: str) -> None:
    async with serving(path, echo, ssl=SERVER) as target:
        end = await opened(path, target)
        end.writer.write(b"GET / HTTP/1.0\r\n\r\n" * 10)
        with contextlib.suppress(ConnectionError):
            assert b"GET" not in await end.reader.read()
        with contextlib.suppress(ConnectionError):
            await closed(end)


async def test_a_handshake_that_takes_too_long_is_an_error(path: str) -> None:
    """The peer reads and says nothing."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with serving(path, listen) as target:
        with pytest.raises(ConnectionAbortedError, match="SSL handshake is taking longer"):
            await opened(path, target, ssl=CLIENT, ssl_handshake_timeout=0.05)


async def test_a_peer_that_ends_in_the_handshake_is_an_error(path: str) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with serving(path, hang_up) as target:
        with pytest.raises(ConnectionError):
            await opened(path, target, ssl=CLIENT)


async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """In the clear until STARTTLS, then an echo in TLS; a client that fails at that is dropped."""
    assert await reader.readline() == b"STARTTLS\n"
    writer.write(b"go on\n")
    try:
        await writer.start_tls(SERVER)
    except OSError:
        writer.close()
    else:
        await echo(reader, writer)


async def test_streams_change_to_tls(path: str, host: str) -> None:
    async with serving(path, upgrade, host) as target:
        end = await opened(path, target)
        end.writer.write(b"STARTTLS\n")
        assert await end.reader.readline() == b"go on\n"
        assert not is_encrypted(end)
        await end.writer.start_tls(CLIENT, server_hostname="localhost")
        assert is_encrypted(end)
        assert end.info.path == path
        await exchanges(end)
        await end.writer.drain()
        end.writer.writelines([b"a", b"line\n"])
        assert await end.reader.readline() == b"aline\n"
        await closed(end)
        assert await end.reader.read() == b""


async def test_a_refused_certificate_ends_a_connection_that_changes(path: str) -> None:
    async with serving(path, upgrade) as target:
        end = await opened(path, target)
        end.writer.write(b"STARTTLS\n")
        assert await end.reader.readline() == b"go on\n"
        with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.test"):
            await end.writer.start_tls(CLIENT, server_hostname="other.test")
        assert end.writer.is_closing()
        with contextlib.suppress(OSError):
            await closed(end)


async def test_what_was_read_ahead_of_the_change_is_tls() -> None:
    """The client does not wait for the server's word: the beginning of its handshake lies in the server's reader already.

    asyncio over TCP loses it, on all versions but the newest, and both ends wait.
    """

    async def upgrade_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await eventually(lambda: sent.done())
        assert await reader.readline() == b"STARTTLS\n"
        assert reader._buffer  # type: ignore[attr-defined]
        await writer.start_tls(SERVER)
        await echo(reader, writer)

    sent = asyncio.get_running_loop().create_future()
    async with serving("smc-d", upgrade_late) as target:
        end = await opened("smc-d", target)
        end.writer.write(b"STARTTLS\n")
        starting = asyncio.ensure_future(end.writer.start_tls(CLIENT, server_hostname="localhost"))
        await turns()
        sent.set_result(None)
        await starting
        await exchanges(end)
        await closed(end)


async def test_what_was_smuggled_in_before_the_change_is_not_read_behind_it() -> None:
    """Bytes in the clear behind the client's word, as of somebody in between, are no application data: TLS fails at them."""

    async def upgrade_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"STARTTLS\n"
        assert b"EVIL" in reader._buffer  # type: ignore[attr-defined]
        with pytest.raises(ssl.SSLError) as caught:
            await writer.start_tls(SERVER)
        with pytest.raises(ssl.SSLError):
            await reader.read()
        failed.set_result(caught.value)

    failed = asyncio.get_running_loop().create_future()
    async with serving("smc-d", upgrade_late) as target:
        end = await opened("smc-d", target)
        end.writer.write(b"STARTTLS\nEVIL COMMAND\n")
        assert isinstance(await failed, ssl.SSLError)
        end.writer.close()
        with contextlib.suppress(OSError):
            await end.writer.wait_closed()


async def test_a_change_to_tls_under_a_read_that_waits_is_refused(host: str) -> None:
    """It would take the bytes of TLS. Nothing is harmed."""
    async with connected(host) as (client, server):
        reading = asyncio.ensure_future(client.reader.read(100))
        await turns(3)
        with pytest.raises(RuntimeError, match="while a read waits"):
            await client.writer.start_tls(CLIENT, server_hostname="localhost")
        server.writer.write(b"still in the clear")
        assert await reading == b"still in the clear"
        client.writer.write(b"and back")
        assert await server.reader.readexactly(8) == b"and back"


async def test_transports_change_to_tls_by_the_loop(path: str) -> None:
    """loop.start_tls on either kind of loop, at both ends, with the transports of any path."""
    loop = asyncio.get_running_loop()
    async with joined(path) as (client, server, _):
        at_server = asyncio.ensure_future(loop.start_tls(server.transport, server, SERVER, server_side=True))
        at_client = await loop.start_tls(client.transport, client, CLIENT, server_hostname="localhost")
        assert at_client is not None
        client.transport = at_client
        server.transport = await at_server  # type: ignore[assignment]
        assert client.transport.get_extra_info("ssl_object") is not None
        info = smcfast.smc_info(client.transport)
        assert info is not None
        assert info.path == path
        data = pattern(300_000)
        client.transport.write(data)
        server.transport.write(data)
        await eventually(lambda: len(client.data) == len(server.data) == len(data))
        assert client.data == server.data == data
        assert client.calls.count("made") == 1


async def test_what_cannot_change_to_tls_is_refused(path: str) -> None:
    loop = asyncio.get_running_loop()
    async with joined(path) as (client, _, _):
        with pytest.raises(TypeError, match="SSLContext"):
            await loop.start_tls(client.transport, client, None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not supported by start_tls"):
            await loop.start_tls(object(), client, CLIENT)  # type: ignore[arg-type]


async def test_tls_in_tls() -> None:
    """As a client of an HTTPS proxy has it for an https: address."""
    loop = asyncio.get_running_loop()
    tls = {"client_tls": {"ssl": CLIENT}, "server_tls": {"ssl": SERVER}}
    async with joined("smc-d", **tls) as (client, server, _):  # type: ignore[arg-type]
        at_server = asyncio.ensure_future(loop.start_tls(server.transport, server, SERVER, server_side=True))
        client.transport = await loop.start_tls(client.transport, client, CLIENT, server_hostname="localhost")  # type: ignore[assignment]
        server.transport = await at_server  # type: ignore[assignment]
        client.transport.write(b"deep")
        await eventually(lambda: server.data == b"deep")


async def _run(coroutine: Any) -> Any:
    return await coroutine


@pytest.mark.parametrize("woken", [False, True], ids=["asleep", "woken"])
@pytest.mark.parametrize("later", [False, True], ids=["from the start", "later"])
async def test_a_client_cancelled_at_every_await_leaves_nothing(path: str, later: bool, woken: bool) -> None:
    async def open_it(target: tuple[str, int]) -> End:
        if not later:
            return await opened(path, target, ssl=CLIENT)
        end = await opened(path, target)
        try:
            end.writer.write(b"STARTTLS\n")
            await end.reader.readline()
            await end.writer.start_tls(CLIENT, server_hostname="localhost")
        except BaseException:
            end.writer.close()
            raise
        return end

    handler, options = (upgrade_quietly, {}) if later else (echo, {"ssl": SERVER})
    async with serving(path, handler, **options) as target:
        await closed(await open_it(target))
        await turns()
        before = set(descriptors()), len(asyncio.all_tasks())
        point, was_cancelled = 0, True
        while was_cancelled:
            task = asyncio.ensure_future(_run(cancelled_at(point, open_it(target), woken=woken)))  # type: ignore[arg-type]
            await asyncio.wait([task])
            was_cancelled = task.cancelled()
            if not was_cancelled:
                await exchanges(task.result(), 1000)
                await closed(task.result())
            del task
            await eventually(lambda: len(asyncio.all_tasks()) <= before[1] and set(descriptors()) <= before[0])
            point += 1
        assert point > 1


async def upgrade_quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """For clients that may go at any time."""
    if await reader.readline() != b"STARTTLS\n":
        writer.close()
        return
    writer.write(b"go on\n")
    try:
        await writer.start_tls(SERVER)
    except OSError:
        writer.close()
    else:
        await echo(reader, writer)


async def test_bytes_in_random_pieces_and_cancelled_reads(path: str, rng: random.Random) -> None:
    """Neither lost nor doubled, with a ring much smaller than what is under way."""
    data = pattern(400_000)

    async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = 0
        while place < len(data):
            size = rng.choice([1, 100, RING, 5 * RING])
            writer.write(data[place : place + size])
            place += size
            await writer.drain()
        writer.close()

    async with serving(path, give, ssl=SERVER) as target:
        end = await opened(path, target, ssl=CLIENT)
        got = bytearray()
        while not end.reader.at_eof():
            reading = asyncio.ensure_future(end.reader.read(rng.choice([1, 1000, 100_000])))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if not reading.done() and rng.random() < 0.5:
                reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got += await reading
        assert got == data
        await closed(end)
