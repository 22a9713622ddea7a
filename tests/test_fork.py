"""What a child inherits of its parent's connections: errors that say so, and nothing that could harm the parent."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, _core, _loop, remembered
from smcfast.streams import RingStreamReader, RingStreamWriter, SmcStreamWriter
from smcfast.transport import RingTransport
from support.addresses import listening, port_of
from support.loops import run_on
from support.process import descriptors, in_a_child
from support.steered import Steered, steered
from support.streams import End, connected, echo, eventually, talk_once

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from support.channel import Channel
    from support.child import Child

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Touches = dict[str, Callable[[], Any]]

# What answers in a child as well, from what is its own.
READER_QUERIES = {"exception", "feed_data", "feed_eof", "keep_unread", "set_exception", "set_transport"}
WRITER_QUERIES = {"can_write_eof", "get_extra_info", "is_closing", "transport"}
TRANSPORT_QUERIES = {
    *("can_write_eof", "get_extra_info", "get_protocol", "is_closing", "is_ours", "is_reading"),
    *("tell", "unread", "when_closed"),  # of this object alone
}
SERVER_QUERIES = {"get_loop", "is_serving", "sockets"}
ENDPOINT_QUERIES = {"group", "path"}


def public(*classes: type) -> set[str]:
    return {name for each in classes for name in dir(each) if not name.startswith("_")}


def touches_of_reader(reader: Any) -> Touches:
    return {
        "read": lambda: reader.read(1).send(None),
        "readexactly": lambda: reader.readexactly(1).send(None),
        "readuntil": lambda: reader.readuntil(b"x").send(None),
        "readline": lambda: reader.readline().send(None),
        "at_eof": reader.at_eof,
        "read all": lambda: reader.read().send(None),
        "readinto": lambda: reader.readinto(bytearray(1)).send(None),
        "view": lambda: reader.view().send(None),
        "iteration": lambda: reader.__anext__().send(None),
    }


def touches_of_writer(writer: Any) -> Touches:
    return {
        "write": lambda: writer.write(b"x"),
        "writelines": lambda: writer.writelines([b"x"]),
        "write_eof": writer.write_eof,
        "drain": lambda: writer.drain().send(None),
        "reserve": lambda: writer.reserve(1).send(None),
        "start_tls": lambda: writer.start_tls(None).send(None),
        "wait_closed": lambda: writer.wait_closed().send(None),
        "close": writer.close,
    }


def touches_of_transport(transport: Any) -> Touches:
    return {
        "set_protocol": lambda: transport.set_protocol(asyncio.Protocol()),
        "pause_reading": transport.pause_reading,
        "resume_reading": transport.resume_reading,
        "write": lambda: transport.write(b"x"),
        "writelines": lambda: transport.writelines([b"x"]),
        "write_eof": transport.write_eof,
        "get_write_buffer_size": transport.get_write_buffer_size,
        "get_write_buffer_limits": transport.get_write_buffer_limits,
        "set_write_buffer_limits": transport.set_write_buffer_limits,
        "drained": lambda: transport.drained().send(None),
        "peer_lost": transport.peer_lost,
        "close": transport.close,
        "abort": transport.abort,
    }


def touches_of_server(server: Any) -> Touches:
    return {
        "start_serving": lambda: server.start_serving().send(None),
        "serve_forever": lambda: server.serve_forever().send(None),
        "close_clients": server.close_clients,
        "abort_clients": server.abort_clients,
        "wait_closed": lambda: server.wait_closed().send(None),
        "close": server.close,
    }


def touches_of_endpoint(end: Any) -> Touches:
    return {
        "write": lambda: end.write(b"x"),
        "read_now": lambda: end.read_now(1, False),
        "read": lambda: end.read(1).send(None),
        "read_exactly": lambda: end.read_exactly(1).send(None),
        "drain": lambda: end.drain().send(None),
        "ready": lambda: end.ready(1).send(None),
        "room": lambda: end.room(1, 1).send(None),
        "view": lambda: end.view(1),
        "reserve": lambda: end.reserve(1),
        "viewed": lambda: end.viewed,
        "reserved": lambda: end.reserved,
        "check": end.check,
        "take": lambda: end.take(1),
        "take_into": lambda: end.take_into(bytearray(1)),
        "at_eof": end.at_eof,
        "reading": lambda: end.reading,
        "backlog": lambda: end.backlog,
        "closed": lambda: end.closed,
        "broken": lambda: end.broken,
        "cut_short": lambda: end.cut_short,
        "write_fault": end.write_fault,
        "write_limits": lambda: end.write_limits,
        "set_write_limits": lambda: end.set_write_limits(2, 1),
        "paused": lambda: end.paused,
        "set_side_buffer": lambda: end.set_side_buffer(bytearray()),
        "set_on_progress": lambda: end.set_on_progress(None),
        "set_on_readable": lambda: end.set_on_readable(None),
        "await_more": end.await_more,
        "write_eof": end.write_eof,
        "close": lambda: end.close(0),
        "abort": end.abort,
        "leave_group": end.leave_group,
        "lost": end.lost,
        "tcp_ended": lambda: end.tcp_ended(False),
        "bypassed": end.bypassed,
        "show": lambda: end.show(_core.Status(0), None, None),
        "description": end.description,
        "counters": end.counters,
        "_flush": end._flush,
    }


def test_every_public_method_is_touched() -> None:
    """One that is new needs a place in the tables of this file."""
    none: Any = asyncio.StreamReader.__new__(asyncio.StreamReader)
    named = {*touches_of_reader(none)}
    assert public(RingStreamReader) - READER_QUERIES - named == set()

    class Anything:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    anything = Anything()
    assert public(SmcStreamWriter, RingStreamWriter) - WRITER_QUERIES - {*touches_of_writer(anything)} == set()
    assert public(RingTransport) - TRANSPORT_QUERIES - {*touches_of_transport(anything)} == set()
    assert public(smcfast.SmcServer) - SERVER_QUERIES - {*touches_of_server(anything)} == set()
    assert public(_core.Endpoint) - ENDPOINT_QUERIES - {*touches_of_endpoint(anything)} == set()


def all_refused(touches: Touches) -> None:
    """In the child."""
    for name, touch in touches.items():
        try:
            touch()
        except RuntimeError as error:
            assert "forked" in str(error) or name == "start_tls", (name, error)  # noqa: PT017
        else:
            raise AssertionError(f"{name} is not refused")


async def asleep(end: End) -> asyncio.Task[bytes]:
    """A read of five bytes that sleeps: only the bell wakes it."""
    reading = asyncio.ensure_future(end.reader.readexactly(5))
    before = end.info.counters["stalls_received"]
    await eventually(lambda: end.info.counters["stalls_received"] > before)
    return reading


async def test_reports_68_and_69_a_child_that_touches_a_connection_gets_errors_and_harms_nobody(host: str) -> None:
    async with connected(host) as (client, server):
        client.writer.write(b"buffered\n")
        await server.reader.readuntil(b"buf")  # the rest lies in the reader's own buffer, of which the child has a copy
        sleeping = await asleep(client)
        before = descriptors()

        def child() -> None:
            for end in (client, server):
                all_refused(touches_of_reader(end.reader))
                all_refused(touches_of_writer(end.writer))
                all_refused(touches_of_transport(end.writer.transport))
                all_refused(touches_of_endpoint(end.reader._endpoint))  # type: ignore[attr-defined]
                assert end.info.path == "smc-d"
                assert "smc-d" in repr(end.writer)

        assert in_a_child(child) == ""
        assert descriptors() == before
        server.writer.write(b"awake")
        assert await sleeping == b"awake"
        assert await server.reader.readline() == b"fered\n"


async def test_a_child_that_touches_a_server_gets_errors_and_harms_nobody(host: str) -> None:
    server = await smcfast.start_smc_server(echo, host, 0)
    assert in_a_child(lambda: all_refused(touches_of_server(server))) == ""
    # The loop still hears of the listener.
    reader, writer = await smcfast.open_smc_connection(host, port_of(server.sockets))
    assert writer.get_extra_info("smc").path == "smc-d"
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


async def test_a_child_that_drops_a_wait_of_a_set_up_does_not_take_it_from_its_parent(host: str) -> None:
    """A suspended coroutine that is destroyed cleans up, in a child in vain: the epoll set is its parent's as well."""
    remembered.destinations._until.clear()
    with listening(host) as (sockets, port):
        config = SmcConfig(assume=("*:*",), handshake_timeout=3600)
        opening = asyncio.ensure_future(smcfast.open_smc_connection(host, port, config=config))
        loop = asyncio.get_running_loop()
        sockets[0].setblocking(False)
        conn, _ = await loop.sock_accept(sockets[0])
        # Somebody who knows nothing of smcfast has accepted: the client has proposed and waits for an answer.
        with conn:
            assert await loop.sock_recv(conn, 1) != b""
            assert in_a_child(opening.get_coro().close) == ""  # type: ignore[union-attr]
        # It hears the end, and opens a plain connection instead.
        _, writer = await opening
        assert writer.get_extra_info("smc").path == "tcp"
        writer.close()
        await writer.wait_closed()


PROGRAM = """
import asyncio, gc, os, signal, socket, sys, smcfast

async def pair():
    arrived = asyncio.get_running_loop().create_future()
    # A listener that is there already: uvloop would look its address up in a thread, and cannot end in a child then.
    sock = socket.create_server(("127.0.0.1", 0))
    server = await smcfast.start_smc_server(lambda *streams: arrived.set_result(streams), sock=sock)
    streams = await smcfast.open_smc_connection(*server.sockets[0].getsockname())
    assert streams[1].get_extra_info("smc").path == "smc-d"
    ends = [*streams, *await arrived]
    sleeping = asyncio.ensure_future(ends[0].readexactly(5))
    while not ends[1].get_extra_info("smc").counters["stalls_received"]:
        await asyncio.sleep(0)
    return server, ends, sleeping

if sys.argv[1] == "uvloop":
    import uvloop
    loop = uvloop.new_event_loop()
else:
    loop = asyncio.new_event_loop()
server, ends, sleeping = loop.run_until_complete(pair())
child = os.fork()
if child == 0:
    signal.alarm(30)
    exec(sys.argv[2])
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
ends[3].write(b"awake")
assert loop.run_until_complete(sleeping) == b"awake"
for writer in ends[1], ends[3]:
    writer.close()
    loop.run_until_complete(writer.wait_closed())
server.close()
loop.run_until_complete(server.wait_closed())
loop.close()
"""


@pytest.mark.parametrize("child", ["pass", "del server, ends, sleeping, loop; gc.collect()", "os._exit(0)"])
def test_the_finalizers_of_a_child_harm_nobody(run_python: Run, loop_kind: str, child: str) -> None:
    """Those of streams, waits, groups and engines; and a child tells of no connection that nobody has closed."""
    done = run_python("-W", "default", "-c", PROGRAM, loop_kind, child)
    assert done.returncode == 0, done.stderr
    assert "RingTransport" not in done.stderr
    assert "RingStreamWriter" not in done.stderr


async def test_a_child_does_not_wait_for_a_lock_that_was_held_at_the_fork() -> None:
    """Another thread forks while the loop's own copies, without the interpreter's lock and with the connection's."""
    async with connected(config=SmcConfig(rmb_size=16 * 1024)) as (client, _):
        said: list[str] = []

        def child() -> None:
            try:
                client.reader.at_eof()
            except RuntimeError:
                return
            raise AssertionError

        forking = threading.Thread(target=lambda: said.append(in_a_child(child)))
        data = bytes(200 << 20)
        forking.start()
        client.writer.write(data)
        forking.join()
        assert said == [""]
        client.writer.transport.abort()  # type: ignore[attr-defined]


def test_a_lock_that_another_thread_held_is_free_in_the_child() -> None:
    from smcfast import counts, log

    def free() -> None:
        assert log._lock.acquire(blocking=False)
        assert counts._private._lock.acquire(blocking=False)

    with log._lock, counts._private._lock:
        assert in_a_child(free) == ""


async def test_a_handshake_under_way_is_the_parents() -> None:
    """The child says nothing in it, and has its parent's loop not woken for anything."""
    with steered() as client:
        engine = _loop.engine()
        assert in_a_child(lambda: refused(engine.core, client)) == ""
        client.step()


def refused(engine: _core.Engine, client: Steered) -> None:
    """In the child."""
    with pytest.raises(RuntimeError, match="process that forked"):
        client.step()
    with pytest.raises(PermissionError):
        engine.watch([0], [])


@pytest.mark.parametrize("fork_from", ["here", "a thread"])
async def test_a_child_has_connections_and_servers_of_its_own(loop_kind: str, host: str, fork_from: str) -> None:
    async def own() -> None:
        async with connected(host) as (mine, other):
            mine.writer.write(b"own")
            assert await other.reader.readexactly(3) == b"own"

    async with connected(host) as (client, server):
        sleeping = await asleep(client)

        def forked() -> str:
            return in_a_child(lambda: run_on(loop_kind, own))

        said = forked() if fork_from == "here" else await asyncio.to_thread(forked)
        assert said == ""
        server.writer.write(b"awake")
        assert await sleeping == b"awake"


async def work(channel: Channel, host: str, method: str) -> None:
    """In a process of its own, which has no threads: start a worker by `method` beside a connection, and go on."""
    server = await smcfast.start_smc_server(echo, host, 0)
    port = port_of(server.sockets)
    async with connected(host) as (mine, other):
        sleeping = await asleep(mine)
        worker = multiprocessing.get_context(method).Process(target=talk_once, args=(host, port))
        worker.start()
        await asyncio.to_thread(worker.join)
        channel.send(worker.exitcode)
        other.writer.write(b"awake")
        assert await sleeping == b"awake"
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
async def test_workers_of_multiprocessing(spawn: Callable[..., Child], loop_kind: str, method: str) -> None:
    parent = spawn(work, "127.0.0.1", method, loop=loop_kind)
    assert await parent.areceive() == 0
    await parent.aresult()
