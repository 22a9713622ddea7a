"""Protocol factories: the event loop's create_connection and create_server, with the same rules on every path."""

from __future__ import annotations

import asyncio
import gc
import inspect
import socket
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast.server import WAIT_CLOSED_WAITS
from support.addresses import port_of
from support.interrupt import cancelled_at
from support.process import descriptors
from support.protocols import PATHS, BufferedRecorder, Recorder, config_of, joined
from support.streams import eventually, pattern, turns

if TYPE_CHECKING:
    import random
    from collections.abc import Coroutine

RING = 16 * 1024


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    """The path that the connection takes, which is asserted."""
    name: str = request.param
    return name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (smcfast.create_smc_connection, asyncio.BaseEventLoop.create_connection),
        (smcfast.create_smc_server, asyncio.BaseEventLoop.create_server),
    ],
    ids=["connection", "server"],
)
def test_every_argument_of_the_loops_method_is_one_of_ours(ours: Any, theirs: Any) -> None:
    """With the same default; only the configuration comes on top. What is newer than this interpreter may be there."""
    mine, its = inspect.signature(ours).parameters, dict(inspect.signature(theirs).parameters)
    del its["self"]
    its.pop("kwargs", None)
    assert set(its) <= set(mine)
    assert set(mine) - set(its) <= {"config", "all_errors", "keep_alive"}
    assert {name: each.default for name, each in its.items()} == {name: mine[name].default for name in its}


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
async def test_both_ends_are_handed_all_bytes_in_order(kind: type[Recorder], path: str, host: str) -> None:
    data = pattern(1_000_000)
    async with joined(path, host, client=kind, server=kind) as (client, server, _):
        client.transport.write(data)
        server.transport.writelines([data[:7], bytearray(data[7:70_000]), memoryview(data)[70_000:]])
        await eventually(lambda: len(client.data) == len(server.data) == len(data))
        assert client.data == server.data == data


async def test_what_a_transport_tells(path: str) -> None:
    async with joined(path) as (client, server, listener):
        transport = client.transport
        assert transport.get_protocol() is client
        assert transport.get_extra_info("peername") == listener.sockets[0].getsockname()
        assert transport.get_extra_info("sockname") == server.transport.get_extra_info("peername")
        assert transport.get_extra_info("socket").fileno() > 0
        assert transport.get_extra_info("no such thing", 5) == 5
        assert transport.can_write_eof()
        assert transport.is_reading()
        assert not transport.is_closing()
        assert transport.get_write_buffer_size() == 0
        info = smcfast.smc_info(transport)
        assert info is not None
        assert info.setup_us is not None
        if path == "smc-d":
            assert transport.get_extra_info("smc") is info
        else:
            assert info.reason == "disabled"
    assert transport.is_closing()
    assert path != "tcp" or smcfast.smc_info(transport) is None


async def test_the_path_is_known_when_the_connection_is_made(path: str) -> None:
    class Asking(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            info = smcfast.smc_info(transport)
            assert info is not None
            self.calls += [f"on {info.path}"]

    async with joined(path, client=Asking, server=Asking) as (client, server, _):
        assert client.calls == server.calls == ["made", f"on {path}"]


async def test_nothing_is_known_of_others_transports() -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    async with server:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, *server.sockets[0].getsockname()
        )
        assert smcfast.smc_info(transport) is None
        transport.close()
        await turns()


async def test_reading_pauses_and_resumes(path: str) -> None:
    async with joined(path) as (client, server, _):
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        client.transport.write(b"held back")
        await turns()
        assert server.data == b""
        server.transport.resume_reading()
        await eventually(lambda: server.data == b"held back")


async def test_a_protocol_may_pause_when_its_connection_is_made(path: str, loop_kind: str) -> None:
    if (path, loop_kind) == ("tcp", "uvloop"):
        pytest.skip("uvloop's own transports begin to read whatever their protocol has said")

    class Paused(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.pause_reading()

    async with joined(path, server=Paused) as (client, server, _):
        client.transport.write(b"x")
        await turns()
        assert server.data == b""
        server.transport.resume_reading()
        await eventually(lambda: server.data == b"x")


async def test_writing_pauses_at_the_high_mark_and_resumes_at_the_low_one(path: str) -> None:
    async with joined(path, config=config_of(path, rmb_size=RING)) as (client, server, _):
        server.transport.pause_reading()
        client.transport.set_write_buffer_limits(high=1000, low=10)
        assert client.transport.get_write_buffer_limits() == (10, 1000)
        size = 0
        while "pause" not in client.calls:
            client.transport.write(bytes(100_000))
            size += 100_000
            await asyncio.sleep(0)
        assert client.transport.get_write_buffer_size() > 1000
        await turns()
        assert "resume" not in client.calls
        server.transport.resume_reading()
        await eventually(lambda: client.calls == ["made", "pause", "resume"])
        assert client.transport.get_write_buffer_size() <= 10
        await eventually(lambda: len(server.data) == size)


async def test_limits_that_are_set_late_count_at_once(path: str) -> None:
    async with joined(path, config=config_of(path, rmb_size=RING)) as (client, server, _):
        server.transport.pause_reading()
        client.transport.set_write_buffer_limits(high=2**30)
        while not client.transport.get_write_buffer_size():
            client.transport.write(bytes(1_000_000))
            await asyncio.sleep(0)
        assert client.calls == ["made"]
        client.transport.set_write_buffer_limits(high=0)
        assert client.calls == ["made", "pause"]
        server.transport.resume_reading()
        await eventually(lambda: client.calls == ["made", "pause", "resume"])
        with pytest.raises(ValueError, match="must be >="):
            client.transport.set_write_buffer_limits(high=1, low=2)


async def test_an_end_of_one_direction_leaves_the_other(path: str) -> None:
    async with joined(path) as (client, server, _):
        client.transport.write(b"question")
        client.transport.write_eof()
        await eventually(lambda: "eof" in server.calls)
        assert server.data == b"question"
        with pytest.raises(RuntimeError, match="after write_eof"):
            client.transport.write(b"more")
        data = pattern(300_000)
        server.transport.write(data)
        server.transport.close()
        await eventually(lambda: client.is_lost or "eof" in client.calls)
        assert client.data == data


async def test_an_end_without_interest_closes_both_ends(path: str) -> None:
    async with joined(path) as (client, server, _):
        server.keeps_open = client.keeps_open = False
        client.transport.write_eof()
        await eventually(lambda: client.is_lost and server.is_lost)
        assert (client.exc, server.exc) == (None, None)


async def test_a_close_sends_what_was_written(path: str) -> None:
    data = pattern(2_000_000)
    async with joined(path, config=config_of(path, rmb_size=RING)) as (client, server, _):
        client.transport.write(data)
        client.transport.close()
        assert client.transport.is_closing()
        await eventually(lambda: client.is_lost and "eof" in server.calls)
        assert client.exc is None
        assert server.data == data


async def test_a_write_after_the_close_does_not_harm_what_was_written_before(path: str) -> None:
    data = pattern(2_000_000)
    async with joined(path, config=config_of(path, rmb_size=RING)) as (client, server, _):
        client.transport.write(data)
        client.transport.close()
        for _ in range(3):
            client.transport.write(b"late")
        await eventually(lambda: client.is_lost and "eof" in server.calls)
        assert client.exc is None
        assert server.data[: len(data)] == data


async def test_an_abort_is_a_loss_without_a_fault_at_its_own_end(path: str) -> None:
    async with joined(path) as (client, server, _):
        server.transport.write(b"x")
        await eventually(lambda: client.data == b"x")
        client.transport.abort()
        client.transport.abort()
        assert not client.is_lost
        await eventually(lambda: client.is_lost and (server.is_lost or "eof" in server.calls))
        assert client.exc is None
        assert server.exc is None or isinstance(server.exc, ConnectionResetError)


async def test_the_protocol_is_changed_on_the_way(path: str) -> None:
    async with joined(path) as (client, server, _):
        client.transport.write(b"first")
        await eventually(lambda: server.data == b"first")
        second = BufferedRecorder()
        second.connection_made(server.transport)
        server.transport.set_protocol(second)
        assert server.transport.get_protocol() is second
        client.transport.write(b"second")
        await eventually(lambda: second.data == b"second")
        server.transport.set_protocol(server)
        client.transport.write(b"third")
        await eventually(lambda: server.data == b"firstthird")


async def test_a_protocol_may_hand_over_when_its_connection_is_made(path: str) -> None:
    class Handing(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.next = Recorder()
            self.next.connection_made(transport)
            transport.set_protocol(self.next)

        @property
        def is_lost(self) -> bool:
            if self.next.is_lost:
                self.calls.append("lost")
            return self.next.is_lost

    async with joined(path, server=Handing) as (client, server, _):
        assert isinstance(server, Handing)
        client.transport.write(b"x")
        await eventually(lambda: server.next.data == b"x")
        assert server.data == b""


async def test_a_protocol_that_raises_when_its_connection_is_made_is_reported_and_goes_on(
    path: str, loop_kind: str
) -> None:
    if (path, loop_kind) == ("tcp", "uvloop"):
        pytest.skip("uvloop's own transports end there")

    class Failing(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            raise ZeroDivisionError

    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    async with joined(path, server=Failing) as (client, server, _):
        assert isinstance(reports[0]["exception"], ZeroDivisionError)
        client.transport.write(b"x")
        await eventually(lambda: server.data == b"x")


async def test_a_protocol_that_raises_loses_its_connection(path: str) -> None:
    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    async with joined(path, server=Failing) as (client, server, _):
        client.transport.write(b"x")
        await eventually(lambda: server.is_lost)
        assert isinstance(server.exc, ZeroDivisionError)
        assert isinstance(reports[0]["exception"], ZeroDivisionError)


@pytest.mark.usefixtures("nothing_is_left")
async def test_a_factory_that_raises_is_the_clients_error_and_leaves_nothing(path: str) -> None:
    def fail() -> Recorder:
        raise ZeroDivisionError

    config = config_of(path)
    async with await smcfast.create_smc_server(Recorder, "127.0.0.1", 0, config=config) as server:
        with pytest.raises(ZeroDivisionError):
            await smcfast.create_smc_connection(fail, *server.sockets[0].getsockname(), config=config)


async def test_a_factory_that_raises_at_a_server_closes_that_connection_alone(path: str) -> None:
    made: list[Recorder] = []

    def fail_once() -> Recorder:
        made.append(Recorder())
        if len(made) == 1:
            raise ZeroDivisionError
        return made[-1]

    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    config = config_of(path)
    async with await smcfast.create_smc_server(fail_once, "127.0.0.1", 0, config=config) as server:
        for lost in (True, False):
            transport, client = await smcfast.create_smc_connection(
                Echo, *server.sockets[0].getsockname(), config=config
            )
            await eventually(lambda client=client, lost=lost: client.is_lost if lost else bool(made[-1].calls))
            transport.close()
        assert isinstance(reports[0]["exception"], ZeroDivisionError)
        await eventually(lambda: "eof" in made[-1].calls)
        made[-1].transport.close()
    await server.wait_closed()


async def test_a_server_ends_its_connections(path: str) -> None:
    for end in ("close_clients", "abort_clients"):
        async with joined(path) as (client, server, listener):
            listener.close()
            getattr(listener, end)()
            await eventually(lambda server=server: server.is_lost)
            assert server.exc is None
            await listener.wait_closed()
            await eventually(lambda client=client: client.is_lost or "eof" in client.calls)


async def test_a_server_waits_for_its_connections_whatever_has_become_of_their_protocols(path: str) -> None:
    """From Python 3.12 on, as asyncio's own."""
    async with joined(path) as (_, server, listener):
        other = Recorder()
        other.connection_made(server.transport)
        server.transport.set_protocol(other)
        listener.close()
        waiting = asyncio.ensure_future(listener.wait_closed())
        await turns()
        assert waiting.done() != WAIT_CLOSED_WAITS
        server.transport.close()
        await waiting
        await eventually(lambda: other.is_lost)
        server.connection_lost(None)


async def test_a_connected_socket_is_taken(path: str) -> None:
    """Discovery is skipped for it, so it is TCP; from then on it is the transport's."""
    config = config_of(path)
    async with await smcfast.create_smc_server(Echo, "127.0.0.1", 0, config=config) as server:
        sock = socket.create_connection(server.sockets[0].getsockname())
        transport, client = await smcfast.create_smc_connection(Recorder, sock=sock, config=config)
        info = smcfast.smc_info(transport)
        assert info is not None
        assert (info.path, info.reason) == ("tcp", "sock_given" if path == "smc-d" else "disabled")
        transport.close()
        await eventually(lambda: client.is_lost)
        assert sock.fileno() == -1
        await eventually(lambda: not (server._clients or server._welcome.pending))


async def _run(coroutine: Any) -> Any:
    return await coroutine


async def settled() -> None:
    await turns()
    gc.collect()


@pytest.mark.parametrize("woken", [False, True], ids=["asleep", "woken"])
async def test_a_client_cancelled_at_every_await_leaves_nothing(path: str, woken: bool, rng: random.Random) -> None:
    """Neither here nor at the server; and whoever comes next gets its bytes through, none lost and none doubled."""
    config = config_of(path)
    made: list[Recorder] = []

    def echo() -> Recorder:
        made.append(Echo())
        return made[-1]

    async with await smcfast.create_smc_server(echo, "127.0.0.1", 0, config=config) as server:
        target = "127.0.0.1", port_of(server.sockets)
        await _talks(smcfast.create_smc_connection(Recorder, *target, config=config), rng)
        await eventually(lambda: not server._clients)
        await settled()
        before = set(descriptors()), asyncio.all_tasks()
        point, cancelled = 0, True
        while cancelled:
            opening = smcfast.create_smc_connection(Recorder, *target, config=config)
            task = asyncio.ensure_future(_run(cancelled_at(point, opening, woken=woken)))  # type: ignore[arg-type]
            await asyncio.wait([task])
            cancelled = task.cancelled()
            if not cancelled:
                await _talks(_run(_done(task.result())), rng)
            del task, opening
            await eventually(lambda: not (server._clients or server._welcome.pending))
            await eventually(lambda: all(one.is_lost for one in made if one.calls))
            await settled()
            assert set(descriptors()) - before[0] == set(), point
            assert asyncio.all_tasks() - before[1] == set(), point
            point += 1
        assert point > 1
        await _talks(smcfast.create_smc_connection(Recorder, *target, config=config), rng)
        await eventually(lambda: not server._clients)


async def _done(value: Any) -> Any:
    return value


class Echo(Recorder):
    """Sends back what it is handed, and closes with its client."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps_open = False

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def _talks(opening: Coroutine[Any, Any, tuple[asyncio.Transport, Recorder]], rng: random.Random) -> None:
    transport, protocol = await opening
    data = rng.randbytes(rng.choice([1, 1000, 300_000]))
    transport.write(data)
    await eventually(lambda: len(protocol.data) == len(data))
    assert protocol.data == data
    transport.close()
    await eventually(lambda: protocol.is_lost)


class Cancelled(Recorder):
    """Raises, for what it is handed, what is no `Exception`."""

    def data_received(self, data: bytes) -> None:
        raise asyncio.CancelledError


async def test_a_cancellation_that_a_protocol_raises_is_the_end(path: str, host: str) -> None:
    """As the result of a cancelled future is. Nothing may be left open that nobody is handed data of any more."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with joined(path, host, server=Cancelled) as (client, server, _):
        client.transport.write(b"x")
        await eventually(lambda: server.is_lost)
    assert [type(context["exception"]) for context in told] == [asyncio.CancelledError]


def connect_and_close(address: tuple[str, int]) -> None:
    """By a blocking socket, which has a link group of its own."""
    with smcfast.create_connection(address) as sock:
        assert sock.smc_info.path == "smc-d"
        assert sock.recv(1) == b"x"


class Greeter(Recorder):
    """Speaks first, and closes with its client."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(b"x")


async def test_lost_connections_in_cycles_hold_no_descriptors() -> None:
    """Most protocols keep their transport, which knows them: only the collector of garbage takes both away."""
    arrived: list[Greeter] = []

    def arrive() -> Greeter:
        arrived.append(Greeter())
        return arrived[-1]

    loop = asyncio.get_running_loop()
    held = []
    async with await smcfast.create_smc_server(arrive, "127.0.0.1", 0, config=config_of("smc-d")) as server:
        address = server.sockets[0].getsockname()
        for _ in range(16):
            await loop.run_in_executor(None, connect_and_close, address)
            await eventually(lambda: all(one.is_lost for one in arrived))
            held.append(len(descriptors()))
    assert held[-1] <= held[7], held
