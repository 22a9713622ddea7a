"""The status page: what a process shows of itself, seen from another one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import signal
import socket
import struct
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import netlink, page, rendezvous, status
from support import frames
from support.addresses import listening, port_of
from support.streams import connected

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

LENGTH = 8 * (512 + 65_536 * 24)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")


async def show(parent: Any, host: str) -> None:
    """Has a server and two connections until it is told otherwise: one on the ring, one that is TCP by configuration."""
    async with connected(host) as (client, server):
        client.writer.write(b"x" * 100)
        assert await server.reader.readexactly(60) == b"x" * 60
        listener = await smcfast.start_smc_server(lambda _, writer: writer.close(), host, 0)
        async with listener:
            parent.send([*client.writer.get_extra_info("sockname")[:2], port_of(listener.sockets)])
            await parent.areceive()


@pytest.mark.smoke
async def test_connections_and_listeners_are_seen_from_another_process(
    spawn: Callable[..., Any], host: str, loop_kind: str
) -> None:
    child = spawn(show, host, loop=loop_kind)
    address, client_port, port = await child.areceive()
    while (seen := of(child.pid)) is None or seen.busy:
        pass  # it has no more than a moment to answer, and no processor perhaps
    assert (seen.error, seen.uid) == (None, os.geteuid())
    assert "child.py" in seen.program
    shown = seen.page
    assert shown is not None
    assert (shown.pid, shown.package, shown.hidden, shown.unsettled) == (child.pid, smcfast.__version__, 0, 0)
    assert {entry.path for entry in shown.listeners} == {"smc-d"}
    assert port in {entry.local[1] for entry in shown.listeners if entry.local}
    ends = {one.role: one for one in shown.connections}
    assert len(shown.connections) == 2
    client, server = ends["client"], ends["server"]
    assert client.local == server.remote == (address, client_port)
    assert (client.path, client.state, client.fallback, client.own_size) == ("smc-d", "ACTIVE", None, 1 << 20)
    assert client.link_group == server.link_group is not None
    assert client.engine == server.engine is not None
    assert (client.sent, client.writes, client.received) == (100, 1, 0)
    assert (server.received, server.read, server.reads, server.sent) == (100, 60, 1, 0)
    assert 0 < shown.begun_us <= client.opened_us
    assert shown.stats["connections"]["smc-d"] == 2
    child.send("end")
    await child.aresult()
    assert child.pid not in {process.pid for process in status.processes()}


async def write_at_full_speed(parent: Any, size: int) -> None:
    """Messages of `size` bytes until it is told otherwise."""
    told = asyncio.ensure_future(parent.areceive())
    async with connected("127.0.0.1") as (client, server):
        parent.send("ready")
        message = bytes(size)
        while not told.done():
            for _ in range(100):
                client.writer.write(message)
                await server.reader.readexactly(size)
            await asyncio.sleep(0)


def test_a_reader_beside_a_writer_sees_no_torn_row(spawn: Callable[..., Any]) -> None:
    size = 64
    child = spawn(write_at_full_speed, size)
    child.receive()
    (file,) = list(status._files(child.pid))
    last: dict[str, tuple[int, ...]] = {"client": (0, 0), "server": (0, 0)}
    moved = 0
    with open(file, "rb") as owner:
        for _ in range(3_000):
            shown = status.page_in(os.dup(owner.fileno()))
            assert (shown.unsettled, len(shown.connections)) == (0, 2)
            for one in shown.connections:
                assert (one.path, one.own_size, one.peer_size) == ("smc-d", 1 << 20, 1 << 20)
                bytes_, messages = (one.sent, one.writes) if one.role == "client" else (one.read, one.reads)
                assert bytes_ % size == 0
                assert bytes_ // size - messages in (0, 1)
                assert one.acknowledged <= one.sent
                assert one.read <= one.received
                assert last[one.role] <= (bytes_, messages)
                moved += last[one.role] < (bytes_, messages)
                last[one.role] = (bytes_, messages)
    assert moved > 10, "the writer stood still"
    child.send("end")
    child.result()


async def live(parent: Any) -> None:
    async with connected("127.0.0.1"):
        parent.send("ready")
        await parent.areceive()


def of(pid: int) -> status.Process | None:
    return next((process for process in status.processes() if process.pid == pid), None)


def test_a_stopped_process_is_busy_and_a_dead_one_is_not_shown(spawn: Callable[..., Any]) -> None:
    child = spawn(live)
    child.receive()
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    stopped = of(child.pid)
    assert stopped is not None
    assert stopped.busy
    assert stopped.page is not None
    assert len(stopped.page.connections) == 2
    assert status.read(child.pid) == stopped.page
    # So many wait for it that nobody else may: it is found all the same.
    name = rendezvous.status_name(stopped.page.id)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(BlockingIOError):
            while True:
                stack.enter_context(rendezvous.call(name))
        crowded = of(child.pid)
    assert crowded == stopped
    os.kill(child.pid, signal.SIGCONT)
    assert status.read(child.pid).id == stopped.page.id
    child.kill()
    assert of(child.pid) is None
    with pytest.raises(ProcessLookupError):
        status.read(child.pid)


@ROOT
def test_another_user_gets_nothing(spawn: Callable[..., Any]) -> None:
    child = spawn(live)
    child.receive()
    name = rendezvous.status_name(status.read(child.pid).id)
    os.seteuid(65_534)
    try:
        assert of(child.pid) is None
        conn = rendezvous.call(name)
    finally:
        os.seteuid(0)
    with conn:
        conn.setblocking(True)
        conn.settimeout(30)
        assert conn.recvmsg(100, 100)[:2] == (b"", [])


async def answer_of(number: int) -> tuple[bytes, list[int]]:
    loop = asyncio.get_running_loop()
    with rendezvous.call(rendezvous.status_name(number)) as conn:
        packet = await frames.next_frame(loop, conn, loop.time() + 30)
    assert packet is not None
    return packet


async def test_whichever_loop_runs_hands_out_a_page_that_cannot_be_written() -> None:
    async with connected("127.0.0.1"):
        own = page.page()
        assert own is not None
        greeting, fds = await answer_of(own.read()["id"])
        assert (greeting, len(fds)) == (page.GREETING, 1)
        (fd,) = fds
        try:
            assert os.fstat(fd).st_size == LENGTH
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            try:
                with pytest.raises(PermissionError):
                    os.pwrite(again, b"x", 0)
                with pytest.raises(PermissionError):
                    mmap.mmap(again, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                with pytest.raises(PermissionError):
                    os.ftruncate(again, 0)
            finally:
                os.close(again)
        finally:
            os.close(fd)


def test_a_loop_that_is_closed_leaves_the_page_to_the_others(run: Callable[..., None]) -> None:
    run(test_whichever_loop_runs_hands_out_a_page_that_cannot_be_written)
    run(test_whichever_loop_runs_hands_out_a_page_that_cannot_be_written)


def memfd(length: int, content: bytes = b"", seals: int = SEALS) -> int:
    fd = os.memfd_create("smcfast-status", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, length)
    os.pwrite(fd, content, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_hostile_pages_are_errors(rng: random.Random) -> None:
    head = struct.pack("=QII", int.from_bytes(b"smcstat\0", "little"), 1, 192)
    cases = [
        (memfd(LENGTH, rng.randbytes(1 << 16)), "magic: is not that of a status page"),
        (memfd(0), "size: 0 bytes"),
        (memfd(100), "size: 100 bytes"),
        (memfd(4096, head), f"size: 4096 bytes, expected {LENGTH}"),
        (memfd(LENGTH - 8, head), "size:"),
        (memfd(LENGTH, head, 0), "seals"),
        (memfd(LENGTH, head, fcntl.F_SEAL_GROW), "seals"),
        (memfd(LENGTH, head[:8] + struct.pack("=II", 77, 192)), "version 77, this is 1"),
        (memfd(LENGTH, head[:8] + struct.pack("=II", 1, 200)), "bytes of a row"),
        (memfd(LENGTH, head), "capacity"),
        (os.open("/dev/null", os.O_RDONLY), "shared memory"),
        (os.open(__file__, os.O_RDONLY), "shared memory"),
        (os.pipe2(os.O_CLOEXEC)[0], "shared memory"),
        (-1, "Bad file descriptor"),
    ]
    for fd, message in cases:
        with pytest.raises(status.StatusError, match=message):
            status.page_in(fd)


def spoiled(rng: random.Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        data[rng.choice((rng.randrange(16, 240), rng.randrange(4096, 4096 + 2 * 192)))] = rng.choice(
            (0, 1, 0x7F, 0xFF, rng.randrange(256))
        )
    return bytes(data)


async def test_a_page_with_any_byte_spoiled_is_read_or_refused(rng: random.Random) -> None:
    async with connected("127.0.0.1"):
        (fd,) = (await answer_of(page.page().read()["id"]))[1]  # type: ignore[union-attr]
        content = os.pread(fd, 8 * (512 + 24 * 2), 0)
        os.close(fd)
    errors = [error for _ in range(2000) if (error := why_refused(memfd(LENGTH, spoiled(rng, content))))]
    assert len(errors) > 100
    assert {error[:13] for error in errors} == {"status page: "}


def why_refused(fd: int) -> str:
    try:
        status.page_in(fd)
    except status.StatusError as error:
        return str(error)
    return ""


def test_answers_that_are_none_do_not_pass(spawn: Callable[..., Any]) -> None:
    """Somebody else has a name like ours: what it says is an error, or nothing."""
    child = spawn(pretend)
    child.receive()
    for _ in range(4):
        child.send("next")
        child.receive()
        process = of(child.pid)
        assert process is not None
        assert process.page is None
        assert process.error is None or "status page" in process.error or "shared memory" in process.error
    child.send("end")
    child.result()


def pretend(parent: Any) -> None:
    """Child: answers whoever asks, for others who look at all processes of the machine must not fill its queue."""
    answer: tuple[bytes, list[int]] = (b"", [])

    def serve(sock: socket.socket) -> None:
        while True:
            conn, _ = sock.accept()
            with conn, contextlib.suppress(OSError):
                rendezvous.send(conn, *answer)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(rendezvous.status_name(netlink.cookie(sock)))
        sock.listen()
        threading.Thread(target=serve, args=(sock,), daemon=True).start()
        parent.send("ready")
        null = os.open("/dev/null", os.O_RDONLY)
        for answer in (  # noqa: B007 - `serve` gives it
            (b"nonsense", [null]),
            (page.GREETING, []),
            (page.GREETING, [null]),
            (page.GREETING, [memfd(LENGTH)]),
        ):
            parent.receive()
            parent.send("next")
        parent.receive()


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        return os.fork()


async def fork_and_live(parent: Any, keeps_the_name: bool) -> None:
    """A child is forked beside a connection and stays, a minute at most; it has no page until it has a connection.

    :param keeps_the_name: as a child does that was stopped right behind the fork, or that another language has forked.
    """
    told, tell = os.pipe()
    async with connected("127.0.0.1"):
        own = page._own.name
        assert own is not None
        kept = os.dup(own.fileno()) if keeps_the_name else None
        if (pid := fork()) == 0:
            signal.alarm(60)
            os.write(tell, b"x")
            while True:
                signal.pause()
        os.read(told, 1)  # what happens in a child behind a fork has happened
        if kept is not None:
            os.close(kept)
        parent.send(pid)
        await parent.areceive()


@pytest.mark.parametrize("keeps_the_name", [False, True])
def test_a_forked_child_does_not_keep_its_parent_alive(spawn: Callable[..., Any], keeps_the_name: bool) -> None:
    parent = spawn(fork_and_live, keeps_the_name)
    child = parent.receive()
    witness = os.pidfd_open(child)
    try:
        number = status.read(parent.pid).id
        assert number in status._numbers()
        assert of(child) is None
        parent.kill()
        assert (number in status._numbers()) == keeps_the_name
        assert of(parent.pid) is None
        assert of(child) is None
    finally:
        signal.pidfd_send_signal(witness, signal.SIGKILL)
        os.close(witness)


def test_a_forked_child_has_a_page_of_its_own(run: Callable[..., None]) -> None:
    async def talk() -> None:
        async with connected("127.0.0.1") as (client, server):
            client.writer.write(b"x" * 10)
            await server.reader.readexactly(10)

    run(talk)
    before = page.page()
    assert before is not None
    known, stats = before.read(), smcfast.stats()
    child = fork()
    if child == 0:
        result = 1
        try:
            assert smcfast.stats()["totals"]["bytes_sent"] == 0
            assert smcfast.stats()["connections"] == {"smc-d": 0, "smc-r": 0, "kernel": 0, "tcp": 0}
            run(talk)
            own = page.page()
            assert own is not None
            assert own is not before
            assert own.read()["id"] not in (0, known["id"])
            assert own.read()["pid"] == os.getpid()
            assert smcfast.stats()["totals"]["bytes_sent"] == 10
            before.count_stream("tcp")  # without effect
            result = 0
        finally:
            os._exit(result)
    _, result = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(result) == 0
    assert smcfast.stats() == stats
    assert before.read()["id"] == known["id"]


async def refuse_the_page(parent: Any) -> None:
    """The system gives no memory of the page's size: connections do not notice, and what they do is counted."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
    async with connected("127.0.0.1") as (client, server):
        client.writer.write(b"x" * 10)
        assert await server.reader.readexactly(10) == b"x" * 10
        own = page.page()
        assert own is not None
        assert not own.is_shared
        with pytest.raises(FileNotFoundError):
            own.open()
        assert smcfast.stats()["totals"]["bytes_received"] == 10
        assert smcfast.stats()["connections"]["smc-d"] == 2
        parent.send("ready")
        await parent.areceive()


def test_a_process_without_a_page_works_unseen(spawn: Callable[..., Any]) -> None:
    child = spawn(refuse_the_page)
    child.receive()
    assert of(child.pid) is None
    child.send("end")
    child.result()


async def test_tcp_connections_have_rows_with_their_reason(host: str) -> None:
    heard = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        heard.set()

    def rows(port: int) -> list[status.Connection]:
        own = status.read(os.getpid())
        return [one for one in own.connections if one.local and one.remote and port in (one.local[1], one.remote[1])]

    with listening(host) as (sockets, port):
        server = await smcfast.start_smc_server(hear, sock=sockets[0], config=smcfast.SmcConfig(paths=()))
        async with server:
            assert [one.path for one in status.read(os.getpid()).listeners if one.local and one.local[1] == port] == [
                "tcp"
            ]
            _, writer = await smcfast.open_smc_connection(
                sockets[0].getsockname()[0], port, config=smcfast.SmcConfig(paths=())
            )
            seen = rows(port)
            assert ("client", "tcp", "ACTIVE", "disabled") in {
                (one.role, one.path, one.state, one.fallback.name if one.fallback else None) for one in seen
            }
            writer.close()
            await writer.wait_closed()
            await heard.wait()
        await server.wait_closed()
        await asyncio.sleep(0)
        assert [one for one in status.read(os.getpid()).listeners if one.local and one.local[1] == port] == []
        assert [one for one in rows(port) if one.role == "client"] == []


async def test_totals_are_those_of_all_connections_open_and_closed(host: str) -> None:
    before = smcfast.stats()["totals"]

    def done() -> dict[str, int]:
        now = smcfast.stats()["totals"]
        return {name: now[name] - before[name] for name in now}

    async with connected(host) as (client, server):
        for size in (10, 70_000):
            client.writer.write(bytes(size))
            await server.reader.readexactly(size)
        expected = {name: client.info.counters[name] + server.info.counters[name] for name in client.info.counters}
        assert done() == expected
        assert (expected["bytes_sent"], expected["bytes_received"]) == (70_010, 70_010)
    after = done()
    assert list(after) == list(client.info.counters)
    assert (after["bytes_sent"], after["messages_sent"]) == (70_010, 2)
    del client, server
    assert done()["bytes_sent"] == 70_010


async def test_the_state_follows_the_connection() -> None:
    async with connected("127.0.0.1") as (client, server):
        name = client.writer.get_extra_info("sockname")[1]

        def state(role: str) -> str:
            own = status.read(os.getpid()).connections
            return next(
                one.state
                for one in own
                if one.role == role and name in (one.local or ("", 0))[1:] + (one.remote or ("", 0))[1:]
            )

        assert (state("client"), state("server")) == ("ACTIVE", "ACTIVE")
        client.writer.write_eof()
        assert await server.reader.read() == b""
        assert (state("client"), state("server")) == ("PEERCLOSEWAIT1", "APPCLOSEWAIT1")
        server.writer.close()
        await server.writer.wait_closed()
        assert state("server") == "CLOSED"


def test_several_loops_serve_one_name() -> None:
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            asyncio.run(test_whichever_loop_runs_hands_out_a_page_that_cannot_be_written())
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)


def test_nothing_is_made_before_the_first_connection(run_python: Callable[..., Any]) -> None:
    program = (
        "import os, smcfast; from smcfast import status; status.processes(0)\n"
        "assert not [fd for fd in os.listdir('/proc/self/fd') if 'memfd' in os.path.realpath(f'/proc/self/fd/{fd}')]"
    )
    done = run_python("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
