"""`smcfast proxy`: real processes, whose other ends are in the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import ends
from support.addresses import listening, port_of, refusing
from support.proxy import proxy
from support.streams import PATTERN, End, echo, eventually, pattern, turns

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Callable

    from support.proxy import Proxy

    Run = Callable[..., subprocess.CompletedProcess[str]]

LARGE = pattern(3_000_000)
"""More than all rings and buffers on the way together hold at once."""


class Serving:
    """A server in the test; `ends` has who has come."""

    def __init__(self) -> None:
        self.ends: asyncio.Queue[End] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.ends.put_nowait(End(reader, writer))

    def close(self) -> None:
        """Nobody need have taken them all."""
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(kind: str, host: str = "127.0.0.1") -> AsyncIterator[tuple[Serving, str]]:
    """A server of streams, and what a forward calls it."""
    made = Serving()
    with listening(host) as (sockets, port):
        start = smcfast.start_smc_server if kind == "smc" else asyncio.start_server
        servers = [await start(made.accept, sock=sock.dup()) for sock in sockets]
    try:
        yield made, f"{kind}:[{host}]:{port}" if ":" in host else f"{kind}:{host}:{port}"
    finally:
        for server in servers:
            server.close()
        made.close()
        await turns()


def at(kind: str, host: str) -> str:
    return f"{kind}:[{host}]:0" if ":" in host else f"{kind}:{host}:0"


async def finish(*all_ends: End) -> None:
    for end in all_ends:
        end.writer.close()
    for end in all_ends:
        await end.closed()


def reset(end: End) -> None:
    """Close with a reset on every path."""
    sock = end.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
    end.writer.transport.abort()


async def until_nobody_listens(running: Proxy) -> None:
    """The proxy has heard a signal."""
    line = f":{running.port():04X} 00000000:0000 0A"
    await eventually(lambda: line not in Path("/proc/net/tcp").read_text())


async def is_reset(running: Proxy) -> None:
    """A connection of plain TCP through the proxy ends with a reset, perhaps while it is made."""

    async def ask() -> None:
        end = await dial("tcp", "127.0.0.1", running.port())
        try:
            await end.reader.read()
        finally:
            await finish(end)

    with pytest.raises(ConnectionResetError):
        await ask()


async def dial(kind: str, host: str, port: int) -> End:
    opened = smcfast.open_smc_connection if kind == "smc" else asyncio.open_connection
    return End(*await opened(host, port))


async def exchanged(one: End, other: End) -> None:
    """Both send a lot at the same time and then their end, and get what the other one has sent."""

    async def send(end: End, data: bytes) -> None:
        end.writer.write(data)
        await end.writer.drain()
        end.writer.write_eof()

    sent = LARGE, LARGE[::-1]
    *_, first, second = await asyncio.gather(
        send(one, sent[0]), send(other, sent[1]), one.reader.read(), other.reader.read()
    )
    assert (first == sent[1], second == sent[0]) == (True, True)


@pytest.mark.smoke
async def test_plain_programs_talk_by_smc(loop_kind: str, host: str) -> None:
    """A client and a server that know nothing of it, with a proxy beside each, in one process here."""
    async with serving("tcp", host) as (server, target), proxy(loop_kind, f"{at('smc', host)}={target}") as right:
        smc = f"smc:{target.partition(':')[2].rpartition(':')[0]}:{right.port()}"
        async with proxy(loop_kind, f"{at('tcp', host)}={smc}") as left:
            client = await dial("tcp", host, left.port())
            end = await server.ends.get()
            await exchanged(client, end)
            await finish(client, end)
            for each in (left, right):
                told = await each.passed()
                assert (told["paths"], told["reasons"], told["fault"]) == (["smc-d"], [None], None)
                assert told["bytes_there"] == told["bytes_back"] == len(LARGE)
                code, last = await each.ended(signal.SIGTERM)
                assert (code, last["paths"]["smc-d"], last["cut_off"]) == (0, 1, 0)


@contextlib.asynccontextmanager
async def through(
    loop_kind: str, listen: str, connect: str, *options: str, **more: Any
) -> AsyncIterator[tuple[Proxy, End, End, Serving]]:
    """A proxy, and both ends of one connection through it."""
    async with (
        serving(connect) as (server, target),
        proxy(loop_kind, f"{at(listen, '127.0.0.1')}={target}", *options, **more) as running,
    ):
        client = await dial(listen, "127.0.0.1", running.port())
        end = await server.ends.get()
        yield running, client, end, server
        await finish(client, end)


DIRECTIONS = [("tcp", "smc"), ("smc", "tcp")]


@pytest.mark.parametrize(("listen", "connect"), DIRECTIONS)
async def test_one_end_ends_and_the_other_goes_on(loop_kind: str, listen: str, connect: str) -> None:
    async with through(loop_kind, listen, connect) as (running, client, server, _):
        for first, second in ((client, server), (server, client)):
            first.writer.write(b"the last of one\n")
            if first is client:
                first.writer.write_eof()
                assert await second.reader.read() == b"the last of one\n"
                second.writer.write(PATTERN)
                await second.writer.drain()
                assert await first.reader.readexactly(len(PATTERN)) == PATTERN
            else:
                first.writer.write_eof()
                assert await second.reader.read() == b"the last of one\n"
        await finish(client, server)
        told = await running.passed()
        assert (told["paths"], told["fault"]) == (["smc-d"], None)


@pytest.mark.parametrize(("listen", "connect"), DIRECTIONS)
async def test_a_reset_is_passed_on_as_a_reset(loop_kind: str, listen: str, connect: str) -> None:
    async with through(loop_kind, listen, connect) as (running, client, server, serving_):
        for lost, other in ((client, server), (None, None)):
            if lost is None:  # now the other way round
                other = await dial(listen, "127.0.0.1", running.port())
                lost = await serving_.ends.get()
            other.writer.write(b"unread")
            await lost.reader.readexactly(1)
            reset(lost)
            with pytest.raises(ConnectionResetError):
                await other.reader.read()
            assert (await running.passed())["fault"]
            await finish(lost, other)


@pytest.mark.parametrize(("listen", "connect"), DIRECTIONS)
async def test_a_killed_proxy_is_no_end_of_a_stream(loop_kind: str, listen: str, connect: str) -> None:
    async with through(loop_kind, listen, connect) as (running, client, server, _):
        for one, other in ((client, server), (server, client)):
            one.writer.write(b"all of it?")
            assert await other.reader.readexactly(10) == b"all of it?"
        running.process.kill()
        for end in (client, server):
            with pytest.raises(ConnectionResetError):
                await end.reader.read()


@pytest.mark.parametrize(("listen", "connect"), DIRECTIONS)
async def test_a_reader_who_takes_his_time_costs_no_memory(loop_kind: str, listen: str, connect: str) -> None:
    size, chunk = 64 << 20, bytes(1 << 20)
    async with through(loop_kind, listen, connect, env={"SMCFAST_RMB_SIZE": "64K"}) as (running, client, server, _):
        server.writer.write(b"x")
        assert await client.reader.readexactly(1) == b"x"
        before = running.peak()

        async def send() -> None:
            for _ in range(size // len(chunk)):
                client.writer.write(chunk)
                await client.writer.drain()
            client.writer.write_eof()

        sending = asyncio.create_task(send())
        # For as long as something goes on, nobody reads: a weaker test, and no failure, where this is too short.
        while True:
            at_first = client.writer.transport.get_write_buffer_size(), running.peak()
            await asyncio.sleep(0.1)
            if at_first == (client.writer.transport.get_write_buffer_size(), running.peak()):
                break
        assert not sending.done()
        got = 0
        while data := await server.reader.read(1 << 20):
            got += len(data)
        await sending
        assert got == size
        assert running.peak() - before < 8 << 20


async def test_unix_sockets_at_both_plain_ends(loop_kind: str, tmp_path: Path) -> None:
    server = Serving()
    path = str(tmp_path / "server")
    behind = await asyncio.start_unix_server(server.accept, path)
    with refusing("127.0.0.1") as port:
        pass  # It was free a moment ago.
    forwards = f"unix:{tmp_path}/client=smc:127.0.0.1:{port}", f"smc:127.0.0.1:{port}=unix:{path}"
    async with proxy(loop_kind, *forwards, "--mode", "640") as running:
        assert running.at == [[f"{tmp_path}/client"], [f"127.0.0.1:{port}"]]
        status = (tmp_path / "client").stat()
        assert (stat.S_ISSOCK(status.st_mode), stat.S_IMODE(status.st_mode)) == (True, 0o640)
        client = End(*await asyncio.open_unix_connection(str(tmp_path / "client")))
        end = await server.ends.get()
        await exchanged(client, end)
        await finish(client, end)
        assert [(await running.passed())["paths"] for _ in range(2)] == [["smc-d"], ["smc-d"]]
        assert (await running.ended(signal.SIGINT))[0] == 0
    assert not (tmp_path / "client").exists()
    behind.close()


async def test_a_dead_proxys_file_makes_room_and_a_live_ones_does_not(tmp_path: Path, run_python: Run) -> None:
    path = tmp_path / "socket"
    async with serving("smc") as (_, target):
        forward = f"unix:{path}={target}"
        async with proxy("asyncio", forward) as first:
            first.process.kill()
            await first.process.wait()
        assert path.is_socket()
        async with proxy("asyncio", forward):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            done = await asyncio.to_thread(run_python, "-m", "smcfast", "proxy", forward)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == f"{forward}: cannot listen: Address already in use\n"
            assert path.is_socket()


def test_no_other_file_makes_room(tmp_path: Path, run_python: Run) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    done = run_python("-m", "smcfast", "proxy", f"unix:{path}=smc:127.0.0.1:1")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert path.read_text() == "data"


async def test_plain_peers_of_smc_ends_are_served_and_told_once(loop_kind: str) -> None:
    async with serving("tcp") as (server, target):
        target = target.replace("tcp:", "smc:")
        async with proxy(loop_kind, f"smc:127.0.0.1:0={target}") as running:
            for _ in range(2):
                client = await dial("tcp", "127.0.0.1", running.port())
                end = await server.ends.get()
                await exchanged(client, end)
                await finish(client, end)
                told = await running.passed()
                assert (told["paths"], told["reasons"]) == (["tcp", "tcp"], ["peer_plain", "peer_plain"])
            _, last = await running.ended(signal.SIGTERM)
            assert (last["paths"]["tcp"], last["fallbacks"]) == (4, {"peer_plain": 4})
        (warning,) = running.warnings
        assert "TCP and not SMC: the peer did not announce SMC" in warning


async def test_who_forbids_tcp_gets_resets(loop_kind: str) -> None:
    async with serving("tcp") as (_, target):
        forward = f"tcp:127.0.0.1:0={target.replace('tcp:', 'smc:')}"
        async with proxy(loop_kind, forward, env={"SMCFAST_FALLBACK": "forbid"}) as running:
            await is_reset(running)
            assert "fallback to TCP is forbidden" in (await running.passed())["fault"]


async def test_nobody_is_there_yet(loop_kind: str) -> None:
    """One line tells it, not one for each connection; when the server has come, all is well."""
    with refusing("127.0.0.1") as port:
        async with proxy(loop_kind, f"tcp:127.0.0.1:0=smc:127.0.0.1:{port}") as running:
            for _ in range(3):
                await is_reset(running)
                assert (await running.passed())["paths"] == []
            server = await smcfast.start_smc_server(echo, "127.0.0.1", port)
            client = await dial("tcp", "127.0.0.1", running.port())
            client.writer.write(b"now?")
            assert await client.reader.readexactly(4) == b"now?"
            await finish(client)
            assert (await running.passed())["paths"] == ["smc-d"]
            server.close()
            _, last = await running.ended(signal.SIGTERM)
            assert (last["connections"], last["not_connected"]) == (4, 3)
            (warning,) = running.warnings
            assert "cannot connect" in warning


async def test_more_connections_than_there_may_be_are_reset(loop_kind: str) -> None:
    async with through(loop_kind, "tcp", "smc", "--max-connections", "1") as (running, client, end, server):
        for _ in range(2):
            await is_reset(running)
            assert (await running.passed())["fault"] == "there are 1 connections already"
        await finish(client, end)
        assert (await running.passed())["fault"] is None
        third = await dial("tcp", "127.0.0.1", running.port())
        await finish(third, await server.ends.get())
        assert (await running.passed())["fault"] is None
        _, last = await running.ended(signal.SIGTERM)
        assert (last["connections"], last["refused"], len(running.warnings)) == (4, 2, 1)


async def test_a_signal_lets_open_connections_end_by_themselves(loop_kind: str) -> None:
    async with through(loop_kind, "tcp", "smc") as (running, client, server, _):
        running.process.send_signal(signal.SIGINT)
        await until_nobody_listens(running)
        await exchanged(client, server)
        await finish(client, server)
        code, last = await running.ended()
        assert (code, last["cut_off"]) == (0, 0)
        assert running.connections[-1]["bytes_there"] == len(LARGE)


@pytest.mark.parametrize("options", [["--drain-timeout", "0"], []])
async def test_the_end_of_patience_is_a_reset(loop_kind: str, options: list[str]) -> None:
    """The time is up, or a second signal comes."""
    async with through(loop_kind, "tcp", "smc", *options) as (running, client, server, _):
        client.writer.write(b"x")
        await server.reader.readexactly(1)
        running.process.send_signal(signal.SIGTERM)
        if not options:
            await until_nobody_listens(running)
            running.process.send_signal(signal.SIGINT)
        code, last = await running.ended()
        assert (code, last["cut_off"]) == (1, 1)
        for end in (client, server):
            with pytest.raises(ConnectionResetError):
                await end.reader.read()


async def test_hostile_clients_leave_nothing(loop_kind: str) -> None:
    """They come and go at once, in every way, among them some that begin a handshake of SMC and do not end it."""
    proposal = b"\xe2\xd4\xc3\xd9\x01\x00\x34\x10" + bytes(44)
    async with through(loop_kind, "smc", "tcp") as (running, client, server, serving_):
        client.writer.write(b"x")
        await server.reader.readexactly(1)
        before = len(running.descriptors())
        address = ("127.0.0.1", running.port())
        for linger, greeting in ((0, b""), (1, b""), (0, proposal), (1, proposal), (1, proposal[:9])):
            for _ in range(5):
                with socket.create_connection(address) as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", linger, 0))
                    sock.sendall(greeting)
        served: set[asyncio.Task[None]] = set()

        async def serve() -> None:
            while True:
                served.add(asyncio.create_task(answer(*await serving_.ends.get())))

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await echo(reader, writer)
            writer.close()
            # Nobody else may hear of what became of it, and asyncio complains of that at times.
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        serving_them = asyncio.create_task(serve())
        for _ in range(25):
            told = await running.passed()
            assert told["paths"] == ["tcp"]
        serving_them.cancel()
        await asyncio.wait(served)
        client.writer.write(b"y")
        assert await server.reader.readexactly(1) == b"y"
        await eventually(lambda: len(running.descriptors()) <= before)


async def test_several_forwards_and_many_connections(loop_kind: str) -> None:
    async with serving("smc") as (server, target):
        async with proxy(loop_kind, *[f"tcp:127.0.0.1:0={target}"] * 2) as running:

            async def talk(number: int) -> None:
                client = await dial("tcp", "127.0.0.1", running.port(number % 2))
                data = pattern(20_000, number)
                client.writer.write(data)
                client.writer.write_eof()
                assert await client.reader.read() == data
                await finish(client)

            async def serve() -> None:
                async with asyncio.TaskGroup() as group:
                    for _ in range(40):
                        group.create_task(echo(*await server.ends.get()))

            await asyncio.gather(serve(), *map(talk, range(40)))
            code, last = await running.ended(signal.SIGTERM)
            assert (code, last["connections"], last["paths"]["smc-d"], last["reset"]) == (0, 40, 40, 0)


def test_the_example_of_the_proxy(run_python: Run) -> None:
    done = run_python(str(Path(__file__).parents[1] / "examples" / "proxy" / "hello.py"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n1 connection by smc-d\n", "")


def test_what_people_read(run_python: Run, tmp_path: Path) -> None:
    """Without --json: one line for a forward, one at the end."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = f"tcp:127.0.0.1:{port_of([taken])}=smc:127.0.0.1:1"
        done = run_python("-m", "smcfast", "proxy", f"unix:{tmp_path}/first=smc:127.0.0.1:1", busy)
    first = f"unix:{tmp_path}/first=smc:127.0.0.1:1: listening at {tmp_path}/first\n"
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, first, 1)
    assert done.stderr.startswith(f"{busy}: cannot listen: ")
    assert os.listdir(tmp_path) == []


def test_a_wrong_setting_of_a_proxy_is_one_line(run_python: Run) -> None:
    done = run_python("-m", "smcfast", "proxy", "tcp:*:0=smc:h:1", env={"SMCFAST_SPIN_US": "fast"})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is no LISTEN=CONNECT"),
        ("smc:a:1", "is no LISTEN=CONNECT"),
        ("tcp:a:1=tcp:b:2", "neither end is smc:"),
        ("tcp:a:1=unix:/b", "neither end is smc:"),
        ("udp:a:1=smc:b:2", "is none of tcp:HOST:PORT, unix:PATH, smc:HOST:PORT"),
        ("tcp:a=smc:b:2", "the port must be 0..65535"),
        ("tcp:a:65536=smc:b:2", "the port must be 0..65535"),
        ("tcp:a:x=smc:b:2", "the port must be 0..65535"),
        ("tcp::1=smc:b:2", "has no host"),
        ("tcp:::1:1=smc:b:2", "an IPv6 address stands in brackets"),
        ("tcp:a..b:1=smc:b:2", "is no name of a host"),
        ("tcp:a:1=smc:*:2", "but not connected to"),
        ("tcp:a:1=smc:b:0", "but not connected to"),
        ("unix:=smc:b:2", "the path must have 1 to 107 bytes"),
        (f"unix:{'x' * 108}=smc:b:2", "the path must have 1 to 107 bytes"),
    ],
)
def test_what_is_no_forward(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault.replace("*", r"\*")):
        ends.parse_pair(text)


def test_what_is_a_forward() -> None:
    listen, connect = ends.parse_pair("unix:/tmp/a=b=smc:[fe80::1%eth0]:7379")
    assert listen == ends.End("unix", None, 0, "/tmp/a=b", "unix:/tmp/a=b")
    assert connect == ends.End("smc", "fe80::1%eth0", 7379, "", "smc:[fe80::1%eth0]:7379")
    assert ends.parse_pair("smc:*:0=tcp:localhost:1")[0].host is None


@pytest.mark.parametrize(
    "words",
    [
        ["--max-connections", "0"],
        ["--mode", "888"],
        ["--mode", "1777"],
        ["--drain-timeout", "-1"],
        ["--connect-timeout", "inf"],
        ["--connect-timeout", "soon"],
    ],
)
def test_misuse_of_a_proxy(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from smcfast.cli import main

    with pytest.raises(SystemExit) as caught:
        main(["proxy", *words, "tcp:*:0=smc:h:1"])
    assert caught.value.code == 2
    assert f"argument {words[0]}: {words[1]!r}: must be " in capsys.readouterr().err
