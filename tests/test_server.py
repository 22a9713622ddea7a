"""The server beside asyncio's own, on the same interpreter: the same steps must leave the same trace.

The reference runs on asyncio's loop, since uvloop has a server of its own; smcfast runs on both loops, and with clients
on shared memory as well as on TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import resource
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, SmcServer
from support.addresses import listening, port_of
from support.loops import run_on
from support.process import abstract_names, descriptors
from support.streams import eventually, turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
    Steps = Callable[["Kind"], Coroutine[Any, Any, list[Any]]]


class Kind:
    """One implementation: how to serve and how to connect; the path of each stream is kept."""

    def __init__(self, start: Callable[..., Awaitable[Any]], connect: Callable[..., Awaitable[Streams]]) -> None:
        self._start = start
        self._connect = connect
        self.paths: list[str | None] = []

    async def start(self, callback: Any, host: str = "127.0.0.1", **options: Any) -> Any:
        def watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
            self._keep_path(writer)
            return callback(reader, writer)

        return await self._start(watched, host, 0, **options)

    async def connect(self, server: Any) -> Streams:
        reader, writer = await self._connect(*server.sockets[0].getsockname()[:2])
        self._keep_path(writer)
        return reader, writer

    def _keep_path(self, writer: asyncio.StreamWriter) -> None:
        info = writer.get_extra_info("smc")
        self.paths.append(None if info is None else info.path)


def reference() -> Kind:
    """asyncio's own."""
    return Kind(asyncio.start_server, asyncio.open_connection)


def tcp() -> Kind:
    """A plain client of smcfast's server."""
    return Kind(smcfast.start_smc_server, asyncio.open_connection)


def smc_d() -> Kind:
    """smcfast at both ends, with no way but shared memory."""
    config = SmcConfig(fallback="forbid")
    return Kind(
        functools.partial(smcfast.start_smc_server, config=config),
        functools.partial(smcfast.open_smc_connection, config=config),
    )


PATHS: dict[Callable[[], Kind], set[str | None]] = {tcp: {"tcp", None}, smc_d: {"smc-d"}}


@pytest.fixture(params=PATHS, ids=lambda make: make.__name__)
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    kind = request.param()
    yield kind
    assert set(kind.paths) <= PATHS[request.param]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(100):
            writer.write(data)
            await writer.drain()
    writer.close()


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def settled(waiting: asyncio.Task[Any]) -> bool:
    """Is it done without anything further?"""
    await turns()
    return waiting.done()


async def an_idle_server(kind: Kind) -> list[Any]:
    server = await kind.start(echo)
    trace = [server.is_serving(), len(server.sockets), server.get_loop() is asyncio.get_running_loop()]
    server.close()
    server.close()
    await server.wait_closed()
    return [*trace, server.is_serving(), server.sockets]


async def closing_beside_a_connection(kind: Kind) -> list[Any]:
    server = await kind.start(echo)
    reader, writer = await kind.connect(server)
    writer.write(b"one")
    trace: list[Any] = [await reader.readexactly(3)]
    server.close()
    waiting = asyncio.create_task(server.wait_closed())
    trace.append(await settled(waiting))
    writer.write(b"two")
    trace.append(await reader.readexactly(3))
    await hang_up(writer)
    await waiting
    return trace


async def waiting_before_closing(kind: Kind) -> list[Any]:
    server = await kind.start(echo)
    waiting = asyncio.create_task(server.wait_closed())
    trace = [await settled(waiting)]
    server.close()
    await waiting
    return [*trace, await settled(asyncio.create_task(server.wait_closed()))]


async def waiting_before_closing_beside_a_connection(kind: Kind) -> list[Any]:
    server = await kind.start(echo)
    reader, writer = await kind.connect(server)
    writer.write(b"one")
    await reader.readexactly(3)
    waiting = asyncio.create_task(server.wait_closed())
    await asyncio.sleep(0)
    server.close()
    trace = [await settled(waiting)]
    await hang_up(writer)
    await waiting
    return trace


async def serving_for_ever(kind: Kind) -> list[Any]:
    server = await kind.start(echo, start_serving=False)
    trace: list[Any] = [server.is_serving()]
    forever = asyncio.create_task(server.serve_forever())
    await asyncio.sleep(0)
    trace.append(server.is_serving())
    with pytest.raises(RuntimeError, match="already being awaited"):
        await server.serve_forever()
    forever.cancel()
    await asyncio.wait([forever])
    trace += [forever.cancelled(), server.is_serving(), server.sockets]
    with pytest.raises(RuntimeError, match="is closed"):
        await server.serve_forever()
    return trace


async def closing_ends_serving_for_ever(kind: Kind) -> list[Any]:
    server = await kind.start(echo)
    forever = asyncio.create_task(server.serve_forever())
    await asyncio.sleep(0)
    server.close()
    await asyncio.wait([forever])
    return [forever.cancelled()]


async def starting_later(kind: Kind) -> list[Any]:
    server = await kind.start(echo, start_serving=False)
    trace: list[Any] = [server.is_serving()]
    try:
        await kind.connect(server)
    except ConnectionRefusedError:
        trace.append("refused")
    await server.start_serving()
    await server.start_serving()
    trace.append(server.is_serving())
    _, writer = await kind.connect(server)
    await hang_up(writer)
    server.close()
    await server.wait_closed()
    return trace


async def as_a_context(kind: Kind) -> list[Any]:
    async with await kind.start(echo) as server:
        trace = [server.is_serving()]
    return [*trace, server.is_serving(), server.sockets]


def complaints() -> list[tuple[str, str]]:
    """What reaches the loop's exception handler from now on: message and exception."""
    caught: list[tuple[str, str]] = []

    def catch(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        caught.append((context["message"], repr(context.get("exception"))))

    asyncio.get_running_loop().set_exception_handler(catch)
    return caught


async def a_callback_that_fails(kind: Kind) -> list[Any]:
    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        raise ValueError("so be it")

    caught = complaints()
    server = await kind.start(fail)
    reader, writer = await kind.connect(server)
    writer.write(b"x")
    trace: list[Any] = [await reader.read()]
    await hang_up(writer)
    server.close()
    await server.wait_closed()
    return trace + caught


async def a_plain_callback(kind: Kind) -> list[Any]:
    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await kind.start(greet)
    reader, writer = await kind.connect(server)
    trace: list[Any] = [await reader.read()]
    await hang_up(writer)
    server.close()
    await server.wait_closed()
    return trace


async def many_connections(kind: Kind) -> list[Any]:
    server = await kind.start(echo)
    pairs = await asyncio.gather(*(kind.connect(server) for _ in range(20)))
    for number, (_, writer) in enumerate(pairs):
        writer.write(b"%04d" % number)
    trace: list[Any] = [await reader.readexactly(4) for reader, _ in pairs]
    for _, writer in pairs:
        await hang_up(writer)
    server.close()
    await server.wait_closed()
    return trace


SCENARIOS = [
    an_idle_server,
    closing_beside_a_connection,
    waiting_before_closing,
    waiting_before_closing_beside_a_connection,
    serving_for_ever,
    closing_ends_serving_for_ever,
    starting_later,
    as_a_context,
    a_callback_that_fails,
    a_plain_callback,
    many_connections,
]


@pytest.mark.parametrize("steps", SCENARIOS, ids=lambda steps: steps.__name__)
def test_it_behaves_as_asyncios(run: Callable[..., Any], steps: Steps, kind: Kind) -> None:
    assert run(steps, kind) == run_on("asyncio", steps, reference())
    assert abstract_names() == set()


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"host": "127.0.0.1", "port": 0, "ssl": True},
    {"host": "127.0.0.1", "port": 0, "ssl_handshake_timeout": 1.0},
    {"host": "127.0.0.1", "port": 0, "ssl_shutdown_timeout": 1.0},
    {"host": "192.0.2.1", "port": 0},
    {"host": "name.invalid", "port": 0},
    {"host": "::1", "port": 0, "family": socket.AF_INET},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_errors_are_asyncios(arguments: dict[str, Any]) -> None:
    async def error(start: Callable[..., Awaitable[Any]]) -> Any:
        with pytest.raises((OSError, ValueError, TypeError)) as caught:
            await start(echo, **arguments)
        return type(caught.value), str(caught.value)

    assert run_on("asyncio", error, smcfast.start_smc_server) == run_on("asyncio", error, asyncio.start_server)


async def test_a_port_that_another_server_listens_on() -> None:
    """bind succeeds, listen does not: neither name nor descriptor is left."""
    one = await smcfast.start_smc_server(echo, "127.0.0.1", 0, start_serving=False)
    port = one.sockets[0].getsockname()[1]
    other = await smcfast.start_smc_server(echo, "127.0.0.1", port, start_serving=False)
    await one.start_serving()
    before = descriptors(), abstract_names()
    with pytest.raises(OSError, match="Address already in use"):
        await other.start_serving()
    assert (descriptors(), abstract_names()) == before
    other.close()
    one.close()
    await other.wait_closed()
    await one.wait_closed()
    assert abstract_names() == set()


async def test_a_port_in_use() -> None:
    with listening("127.0.0.1") as (_, port), pytest.raises(OSError, match=rf"'127.0.0.1', {port}") as caught:
        await smcfast.start_smc_server(echo, "127.0.0.1", port)
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("wrong", ["datagram", "both"])
async def test_a_wrong_socket(wrong: str) -> None:
    kind = socket.SOCK_DGRAM if wrong == "datagram" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as sock:
        address: dict[str, Any] = {"host": "127.0.0.1", "port": 0} if wrong == "both" else {}
        with pytest.raises(ValueError, match=r"Stream Socket|at the same time"):
            await smcfast.start_smc_server(echo, sock=sock, **address)


async def test_several_hosts_and_options() -> None:
    server = await smcfast.start_smc_server(
        echo, ["127.0.0.1", "::1"], 0, reuse_port=True, keep_alive=True, backlog=7, reuse_address=True
    )
    assert {sock.family for sock in server.sockets} == {socket.AF_INET, socket.AF_INET6}
    for sock in server.sockets:
        for option in (socket.SO_REUSEPORT, socket.SO_KEEPALIVE, socket.SO_REUSEADDR):
            assert sock.getsockopt(socket.SOL_SOCKET, option)
        _, writer = await smcfast.open_smc_connection(*sock.getsockname()[:2])
        assert writer.get_extra_info("smc").path == "smc-d"
        assert writer.get_extra_info("socket").getsockname()[:2] == writer.get_extra_info("sockname")[:2]
        await hang_up(writer)
    server.close()
    await server.wait_closed()


async def test_all_addresses_of_this_host(host: str) -> None:
    server = await smcfast.start_smc_server(echo, None, 0)
    for sock in server.sockets:
        target = "::1" if sock.family == socket.AF_INET6 else "127.0.0.1"
        _, writer = await smcfast.open_smc_connection(target, sock.getsockname()[1])
        assert writer.get_extra_info("smc").path == "smc-d"
        await hang_up(writer)
    server.close()
    await server.wait_closed()


async def test_sockets_that_the_user_made(host: str) -> None:
    with listening(host) as (listeners, port):
        servers = [await smcfast.start_smc_server(echo, sock=sock) for sock in listeners]
        reader, writer = await smcfast.open_smc_connection(host, port)
        assert writer.get_extra_info("smc").path == "smc-d"
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await hang_up(writer)
        for server in servers:
            server.close()
            await server.wait_closed()
        assert [sock.fileno() for sock in listeners] == [-1] * len(listeners)


async def test_a_unix_socket_is_served_as_tcp(tmp_path: Any) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    server = await smcfast.start_smc_server(echo, sock=listener)
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(tmp_path / "socket"))
    reader, writer = await smcfast.open_smc_connection(sock=client)
    assert writer.get_extra_info("smc").fallback.name == "not_inet"
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    await hang_up(writer)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("how", ["close_clients", "abort_clients"])
async def test_ending_all_connections(kind: Kind, how: str) -> None:
    server = await kind.start(echo)
    pairs = [await kind.connect(server) for _ in range(3)]
    for reader, writer in pairs:
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
    server.close()
    getattr(server, how)()
    for reader, writer in pairs:
        if how == "abort_clients" and writer.get_extra_info("smc") is not None:
            with pytest.raises(ConnectionResetError):
                await reader.read()
        else:
            # An abort with nothing unread is an ordinary end of a TCP stream.
            assert await reader.read() == b""
        await hang_up(writer)
    await server.wait_closed()


async def test_a_callback_that_fails_at_once(kind: Kind) -> None:
    def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise ValueError("so be it")

    caught = complaints()
    server = await kind.start(fail)
    reader, writer = await kind.connect(server)
    assert await reader.read() == b""
    assert caught == [("Unhandled exception in client_connected_cb", "ValueError('so be it')")]
    await hang_up(writer)
    server.close()
    await server.wait_closed()


async def test_a_callback_that_is_cancelled(kind: Kind) -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    server = await kind.start(wait)
    reader, writer = await kind.connect(server)
    assert await reader.read() == b""
    await hang_up(writer)
    server.close()
    await server.wait_closed()


async def test_descriptors_run_out() -> None:
    """The server rests for a second and then takes the client that waited."""
    server = await tcp().start(echo)
    client = socket.socket()
    client.setblocking(False)
    filler = []
    caught = complaints()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                filler.append(socket.socket())
        await asyncio.get_running_loop().sock_connect(client, server.sockets[0].getsockname())
        await eventually(lambda: bool(caught))
    finally:
        for sock in filler:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught[0][0] == "socket.accept() out of system resource"
    reader, writer = await asyncio.open_connection(sock=client)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    await hang_up(writer)
    server.close()
    await server.wait_closed()


async def test_a_backlog_of_nobody(kind: Kind) -> None:
    """The kernel lets one connection wait even then."""
    server = await kind.start(echo, backlog=0)
    for _ in range(2):
        reader, writer = await kind.connect(server)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await hang_up(writer)
    server.close()
    await server.wait_closed()


async def test_one_slow_client_does_not_stop_the_next(host: str) -> None:
    """A client that opens its door and never decides holds nobody else up."""
    from smcfast.discovery import Invitation

    server = await smcfast.start_smc_server(echo, host, 0)
    loop = asyncio.get_running_loop()
    target = server.sockets[0].getsockname()
    with socket.socket(server.sockets[0].family) as tcp:
        tcp.setblocking(False)
        with contextlib.closing(Invitation(tcp, target, SmcConfig())) as invitation:
            assert invitation.why is None
            await loop.sock_connect(tcp, target)
            for _ in range(3):
                reader, writer = await smcfast.open_smc_connection(host, port_of(server.sockets))
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
                await hang_up(writer)
            assert len(server._welcome.pending) == 1
            server.close()
            await server.wait_closed()
            assert await loop.sock_recv(tcp, 1) == b""


async def test_handshakes_are_capped() -> None:
    from smcfast.discovery import Invitation

    config = SmcConfig(max_pending_handshakes=2)
    server = await smcfast.start_smc_server(echo, "127.0.0.1", 0, config=config)
    target = server.sockets[0].getsockname()
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            tcp = stack.enter_context(socket.socket())
            tcp.setblocking(False)
            stack.enter_context(contextlib.closing(Invitation(tcp, target, config)))
            await loop.sock_connect(tcp, target)
        reader, writer = await smcfast.open_smc_connection(*target)
        assert writer.get_extra_info("smc").fallback.name == "peer_stopped"
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await hang_up(writer)
        assert smcfast.stats()["fallbacks"]["limit"] > 0
    # Those two have gone, and their places are free again.
    await eventually(lambda: not server._welcome.pending)
    _, writer = await smcfast.open_smc_connection(*target)
    assert writer.get_extra_info("smc").path == "smc-d"
    await hang_up(writer)
    server.close()
    server.close_clients()
    await server.wait_closed()


def test_wait_closed_is_that_of_this_interpreter() -> None:
    from smcfast.server import WAIT_CLOSED_WAITS

    assert (sys.version_info >= (3, 12)) == WAIT_CLOSED_WAITS
    assert issubclass(SmcServer, asyncio.AbstractServer)
