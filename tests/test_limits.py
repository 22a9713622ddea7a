"""Processes that run into the limits of their system: one connection is TCP or fails with a clear error, all others go on.

Whoever is refused something is a child; whoever looks on is this process, which has a connection of its own all the while.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import os
import resource
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, netlink, remembered
from support import hostile, sandbox
from support.addresses import port_of
from support.echo import echo
from support.loops import GUARD, run_within
from support.process import descriptors, resident
from support.relay import altered
from support.streams import End, connected, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

RESTING = 4
"""Link groups that outlive their connections, see docs/limits.md."""
SO_PEERPIDFD = 77
"""Linux 6.5; facts: asm-generic/socket.h."""
RING = 16 * 1024
SMALL = SmcConfig(rmb_size=RING)
MIB = 1024 * 1024
F_SEAL_FUTURE_WRITE = 16
GO, MEMORY = 2, 4
"""Kinds of frames: the client's and the server's memory."""
REFUSALS: list[tuple[Any, ...]] = [
    ("memfd_create", errno.EMFILE),
    ("memfd_create", errno.ENFILE),
    ("memfd_create", errno.ENOMEM),
    ("ftruncate", errno.ENOSPC),
    ("ftruncate", errno.EPERM),
    ("fallocate", errno.ENOSPC),
    ("fallocate", errno.ENOMEM),
    ("madvise", errno.EINVAL),
    ("timerfd_create", errno.ENFILE),
    ("timerfd_create", errno.ENODEV),
    ("epoll_create1", errno.EMFILE),
    ("getsockopt", errno.ENOPROTOOPT, (2, netlink.SO_COOKIE)),
    ("getsockopt", errno.ENOPROTOOPT, (2, socket.SO_PEERCRED)),
]
"""System calls, what they fail with, and with which argument only."""
REASONS = {
    "resources",
    "refused",
    "out_of_memory",
    "internal_error",
    "peer_stopped",
    "peer_plain",
    "no_smc_d_v2_device",
}
"""What a client may find."""
DISPENSABLE: list[tuple[Any, ...]] = [
    ("pidfd_open", errno.ENFILE),
    ("getsockopt", errno.ENOPROTOOPT, (2, SO_PEERPIDFD)),
]
"""Those without which there is another way, or one witness less of the peer's death."""
ONE_LOOP = pytest.mark.parametrize("loop_kind", ["asyncio"])
"""For what happens before any loop has its turn."""
CONNECTIONS = int(os.environ.get("TEST_CONNECTIONS", "1000"))
"""Open at once. Ten thousand take a minute."""
PATIENCE = GUARD + CONNECTIONS / 50


@contextlib.asynccontextmanager
async def echoing(config: SmcConfig) -> AsyncIterator[int]:
    """A server's port."""
    server = await smcfast.start_smc_server(echo, "127.0.0.1", 0, config=config)
    try:
        yield port_of(server.sockets)
    finally:
        server.close()
        server.close_clients()
        await server.wait_closed()


async def talk(port: int, config: SmcConfig = SMALL) -> list[str | None]:
    """Say something, hear it again, hang up: the path, and the reason."""
    reader, writer = await smcfast.open_smc_connection("127.0.0.1", port, config=config)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()
    info = writer.get_extra_info("smc")
    return [info.path, info.reason]


LIMITS: dict[str, Callable[..., None]] = {
    "refuse": sandbox.refuse,
    "file size": lambda size: limit_file_size(size),
    "address space": lambda more: limit_address_space(more),
    "locked memory": lambda size: resource.setrlimit(resource.RLIMIT_MEMLOCK, (size, size)),
    "processes": lambda count: resource.setrlimit(resource.RLIMIT_NPROC, (count, count)),
    "strict": lambda: sandbox.hide("/proc/sys/vm/overcommit_memory", "2\n"),
    "dev shm": lambda size: sandbox.shrink_dev_shm(size),
}


def limit_file_size(size: int) -> None:
    """With the signal that the kernel sends beyond it, which Python would ignore, as deadly as it is by itself."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def limit_address_space(more: int) -> None:
    """To what is in use, and so much more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


async def limited(parent: Channel, role: str, port: int, limits: list[list[Any]], options: dict[str, Any]) -> Any:
    """Child: under `limits`, be a client or a server of the parent."""
    config = SmcConfig(**{"rmb_size": RING, **options})
    for name, *args in limits:
        LIMITS[name](*args)
    if role == "client":
        return await talk(port, config)
    async with echoing(config) as own:
        parent.send(own)
        assert await parent.areceive() == "enough"
    return None


async def under(
    spawn: Spawn, loop_kind: str, role: str, *limits: list[Any], silent: bool = True, **options: Any
) -> list[str | None]:
    """What becomes of a connection one end of which is under `limits`: its path and reason, at the client.

    :param silent: has the child nothing to say about it?
    """
    async with connected(config=SMALL) as bystander, echoing(SMALL) as port:
        child = spawn(limited, role, port, limits, options, loop=loop_kind)
        if role == "client":
            found: list[str | None] = await child.aresult()
        else:
            found = await talk(await child.areceive())
            child.send("enough")
            await child.aresult(silent=silent)
        assert await talk(port) == ["smc-d", None]
        bystander.client.writer.write(b"undisturbed")
        assert await bystander.server.reader.readexactly(11) == b"undisturbed"
    return found


def needs_seccomp() -> None:
    if reason := sandbox.why_no_seccomp():
        pytest.skip(reason)


def needs_mounts() -> None:
    if os.geteuid():
        pytest.skip("only root can put other files in the place of those of /proc and /dev")


@ONE_LOOP
@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("refused", REFUSALS + DISPENSABLE, ids=str)
async def test_report_49_a_refused_call_is_no_crash(
    spawn: Spawn, loop_kind: str, role: str, refused: tuple[Any, ...]
) -> None:
    """Whichever call of a set-up the system refuses: TCP with a reason, or shared memory if it can do without."""
    needs_seccomp()
    silent = refused[-1] != (2, netlink.SO_COOKIE)  # a server says that it cannot be found
    path, reason = await under(spawn, loop_kind, role, ["refuse", *refused], preallocate=True, silent=silent)
    if refused in DISPENSABLE:
        assert (path, reason) == ("smc-d", None)
    else:
        assert path == "tcp"
        assert reason in REASONS, reason


@ONE_LOOP
@pytest.mark.parametrize("role", ["client", "server"])
async def test_files_may_not_be_that_large(spawn: Spawn, loop_kind: str, role: str) -> None:
    limit = ["file size", RING + 4096]
    assert await under(spawn, loop_kind, role, limit) == ["smc-d", None]
    reason = "resources" if role == "client" else "out_of_memory"
    assert await under(spawn, loop_kind, role, limit, rmb_size=2 * RING) == ["tcp", reason]


@ONE_LOOP
@pytest.mark.parametrize("role", ["client", "server"])
async def test_no_address_space(spawn: Spawn, loop_kind: str, role: str) -> None:
    limit = ["address space", 64 * MIB]
    assert await under(spawn, loop_kind, role, limit) == ["smc-d", None]
    reason = "resources" if role == "client" else "out_of_memory"
    assert await under(spawn, loop_kind, role, limit, rmb_size=128 * MIB) == ["tcp", reason]


@ONE_LOOP
@pytest.mark.parametrize("role", ["client", "server"])
async def test_report_48_no_memory_may_be_locked(spawn: Spawn, loop_kind: str, role: str) -> None:
    """Nor may a process or thread be made: none is."""
    limits = [["locked memory", 0], ["processes", 0]]
    assert await under(spawn, loop_kind, role, *limits) == ["smc-d", None]


@ONE_LOOP
@pytest.mark.parametrize("role", ["client", "server"])
async def test_report_53_dev_shm_is_too_small(spawn: Spawn, loop_kind: str, role: str) -> None:
    """No file lies there, so its size is nobody's business; a mebibyte more than it holds goes through all the same."""
    needs_mounts()
    assert await under(spawn, loop_kind, role, ["dev shm", 4096], rmb_size=MIB, preallocate=True) == ["smc-d", None]


@ONE_LOOP
async def test_report_54_no_slower_medium_is_taken_silently(spawn: Spawn, loop_kind: str) -> None:
    """Where memory is refused there is no other kind of file: TCP, and the user is told."""
    needs_seccomp()
    limits = ["refuse", "fallocate", errno.ENOSPC]
    assert await under(spawn, loop_kind, "client", limits, preallocate=True) == ["tcp", "resources"]
    assert await under(spawn, loop_kind, "server", limits, preallocate=True) == ["tcp", "out_of_memory"]


def needs_future_write() -> None:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    except OSError as error:
        pytest.skip(f"this kernel does not know F_SEAL_FUTURE_WRITE: {error}")
    finally:
        os.close(fd)


async def strict_pair(parent: Channel) -> list[Any]:
    """Child: where the kernel does not overcommit, what two ends have of each other's memory, and what a hole does."""
    sandbox.hide("/proc/sys/vm/overcommit_memory", "2\n")
    seen: list[int] = []

    def keep(fds: list[int]) -> list[int]:
        seen.append(os.dup(fds[0]))
        return fds

    watch = hostile.Watch()
    async with contextlib.AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for kind in (GO, MEMORY):
            stack.enter_context(altered(patch, kind, keep))
        pair = await stack.enter_async_context(connected(config=SmcConfig(rmb_size=MIB)))
        memory = watch.memory()
        holes = [mapping.punch(place, 4096) for mapping in memory for place in (0, 4096, MIB)]
        pages = [os.fstat(fd).st_blocks * 512 for fd in seen]
        seals = [fcntl.fcntl(fd, fcntl.F_GET_SEALS) & F_SEAL_FUTURE_WRITE for fd in seen]
        for fd in seen:
            os.close(fd)
        pair.client.writer.write(bytes(3 * MIB))
        assert await pair.server.reader.readexactly(3 * MIB) == bytes(3 * MIB)
    return [holes, pages, seals]


async def test_a_kernel_that_does_not_overcommit(spawn: Spawn, loop_kind: str) -> None:
    """All pages are there before the first is touched, and nobody can take one away: no touch can fail."""
    needs_mounts()
    needs_future_write()
    holes, pages, seals = await spawn(strict_pair, loop=loop_kind).aresult()
    assert seals == [F_SEAL_FUTURE_WRITE] * 2
    assert holes == [errno.EPERM] * 6
    assert pages == [MIB + 4096] * 2


@ONE_LOOP
@pytest.mark.parametrize("role", ["client", "server"])
async def test_a_kernel_that_has_no_more(spawn: Spawn, loop_kind: str, role: str) -> None:
    """The peer's memory needs pages too, if it comes without."""
    needs_mounts()
    needs_seccomp()
    assert await under(spawn, loop_kind, role, ["strict"]) == ["smc-d", None]
    reason = "resources" if role == "client" else "out_of_memory"
    refused = ["refuse", "fallocate", errno.ENOSPC]
    assert await under(spawn, loop_kind, role, ["strict"], refused) == ["tcp", reason]
    of_the_peer = [*refused, (3, RING + 4096)]
    assert await under(spawn, loop_kind, role, ["strict"], of_the_peer, rmb_size=2 * RING) == ["tcp", "out_of_memory"]


@contextlib.contextmanager
def memory_group(limit: int) -> Any:
    """A memory cgroup of `limit` bytes without swap: the file that takes process ids."""
    for folder, name in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = folder / f"smcfast-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            with contextlib.suppress(OSError):
                (group / "memory.swap.max").write_text("0")
            try:
                (group / name).write_text(str(limit))
            except OSError:
                continue
            yield group / "cgroup.procs"
            return
        finally:
            group.rmdir()
    pytest.skip("no memory cgroup can be made here")


def enter(group: str) -> None:
    Path(group).write_text(str(os.getpid()))


async def read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(MIB):
        pass


async def fill(parent: Channel, port: int, group: str) -> None:
    """Child: write more into shared memory than its cgroup has."""
    enter(group)
    parent.send("in")
    reader, writer = await smcfast.open_smc_connection("127.0.0.1", port, config=SmcConfig(rmb_size=512 * MIB))
    assert writer.get_extra_info("smc").path == "smc-d"
    parent.send("connected")
    for _ in range(512):
        writer.write(bytes(MIB))
        await asyncio.sleep(0)
    await reader.read()


async def test_a_memory_cgroup_that_is_full(spawn: Spawn, loop_kind: str) -> None:
    """Pages count for who touches them first. The kernel kills whom it chooses in the group, as for any other memory, and the
    peer is told; nobody gets SIGBUS."""
    with memory_group(96 * MIB) as group:
        arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        server = await smcfast.start_smc_server(
            lambda reader, writer: arrived.set_result(End(reader, writer)),
            "127.0.0.1",
            0,
            config=SmcConfig(rmb_size=512 * MIB),
        )
        async with connected(config=SMALL) as bystander:
            child = spawn(fill, port_of(server.sockets), str(group), loop=loop_kind)
            assert await child.areceive() == "in"
            assert await child.areceive() == "connected"
            end = await arrived
            await eventually(lambda: child.process.poll() is not None)
            with pytest.raises(ConnectionResetError):
                await read_all(end.reader)
            assert child.process.wait(GUARD) == -signal.SIGKILL
            end.writer.close()
            await end.closed()
            bystander.client.writer.write(b"undisturbed")
            assert await bystander.server.reader.readexactly(11) == b"undisturbed"
        server.close()
        await server.wait_closed()


def used() -> int:
    """Descriptors, without the one that uvloop keeps in reserve once it has had a TCP connection."""
    return sum(name != os.devnull for name in descriptors().values())


def hold(parent: Channel, loop_kind: str) -> None:
    """Child: a server that keeps what comes, and tells of it when asked: descriptors, bytes, connections."""

    async def serve() -> None:
        ends: list[End] = []

        def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            end = End(reader, writer)
            if end.info.path == "smc-d":
                ends.append(end)
            else:
                writer.close()

        server = await smcfast.start_smc_server(keep, "127.0.0.1", 0, config=SMALL)
        parent.send(port_of(server.sockets))
        while (word := await parent.areceive(PATIENCE)) != "enough":
            if word == "close":
                for end in ends:
                    end.writer.close()
                for end in ends:
                    await end.closed()
                ends.clear()
            parent.send([used(), resident(), len(ends)])
        server.close()
        await server.wait_closed()

    run_within(PATIENCE, loop_kind, serve)


@pytest.mark.timeout(PATIENCE + 20)
def test_reports_50_and_51_thousands_of_connections_share_what_is_scarce(spawn: Spawn, loop_kind: str) -> None:
    """One descriptor for each end and three for each 255 of them, a few KiB of memory; all gone at the end."""
    need = CONNECTIONS + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if need > hard:
        pytest.skip(f"{need} descriptors are needed, {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, need), hard))
    try:
        run_within(PATIENCE, loop_kind, lambda: many(spawn(hold, loop_kind)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def on_the_ring(port: int) -> End:
    """A connection over shared memory. Of thousands, one may find a machine so busy that its acceptor is late, and is TCP."""
    for _ in range(20):
        end = End(*await smcfast.open_smc_connection("127.0.0.1", port, config=SMALL))
        if end.info.path == "smc-d":
            return end
        assert end.info.reason == "accepted_plain"
        print("an acceptor was late")
        remembered.listeners._until.clear()
        end.writer.close()
        await end.closed()
    raise AssertionError("no acceptor is in time")


async def many(child: Child) -> None:
    port = await child.areceive()

    async def ask(word: str = "how much?") -> list[Any]:
        child.send(word)
        answer: list[Any] = await child.areceive(PATIENCE)
        return answer

    first = await on_the_ring(port)
    gc.collect()  # what other tests have left
    there, here = await ask(), [used(), resident()]
    ends = [await on_the_ring(port) for _ in range(CONNECTIONS - 1)]
    while (now := await ask())[2] < CONNECTIONS:  # noqa: ASYNC110 - the last one may still be at the server's door
        await asyncio.sleep(0)
    groups = {end.info.link_group for end in (first, *ends)}
    assert len(groups) == -(-CONNECTIONS // 255)
    more = CONNECTIONS - 1 + 3 * (len(groups) - 1)  # each a TCP socket; a group has two bells and a witness
    assert now[0] - there[0] == more
    assert used() - here[0] == more
    sizes = [(after - before) / (CONNECTIONS - 1) for after, before in ((now[1], there[1]), (resident(), here[1]))]
    print(f"bytes for each end: server {sizes[0]:.0f}, client {sizes[1]:.0f}")
    assert max(sizes) < 32 * 1024
    for end in ends:
        end.writer.close()
    for end in ends:
        await end.closed()
    del ends, end
    closed = await ask("close")
    kept = 3 * (min(len(groups), RESTING) - 1)
    await eventually(lambda: used() <= here[0] + kept)
    assert closed[0] <= there[0] + kept
    first.writer.close()
    await first.closed()
    child.send("enough")
    await child.aresult()


async def test_report_50_a_reader_that_does_not_read_caps_memory() -> None:
    """The rings hold what they hold, and drain() waits: nothing grows however long the writer goes on."""
    async with connected(config=SmcConfig(rmb_size=MIB)) as pair:
        writer = pair.client.writer
        taken = 0

        async def write_on() -> None:
            nonlocal taken
            while True:
                writer.write(bytes(10_000))
                taken += 10_000
                await writer.drain()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(write_on(), 0.2)
        high = writer.transport.get_write_buffer_limits()[1]
        assert MIB < taken <= MIB + high + 10_000
        assert writer.transport.get_write_buffer_size() <= high + 10_000
        assert len(await pair.server.reader.readexactly(taken)) == taken


async def test_report_52_memory_need_not_be_contiguous() -> None:
    """The largest ring there is, of pages wherever they lie, and none of it is taken before it is written to."""
    before = resident()
    async with connected(config=SmcConfig(rmb_size=512 * MIB)) as pair:
        pair.client.writer.write(b"hello")
        assert await pair.server.reader.readexactly(5) == b"hello"
        assert resident() - before < 16 * MIB
