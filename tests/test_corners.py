"""The corners of discovery, between processes and by the public API: whoever shares a port, comes late or gives up, both
ends say the same, and the application gets its own bytes and no others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, netlink, registration, remembered, rendezvous
from support.addresses import listening
from support.interrupt import cancelled_at
from support.process import state
from support.streams import eventually, turns

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Iterator

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

TOKEN = 16
"""Bytes that every client sends first, and hears again before anything else."""
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    remembered.listeners._until.clear()


class Echo:
    """Echoes, and notes for each token by which path it came; what is no token has its own list."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        self.others: list[str] = []

    async def smc(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, writer.get_extra_info("smc").path)

    async def plain(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, "tcp")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        with contextlib.suppress(ConnectionError):
            try:
                token = await reader.readexactly(TOKEN)
            except asyncio.IncompleteReadError as error:
                self.others.append(error.partial.hex())
            else:
                self.paths[token.hex()] = path
                writer.write(token)
                while data := await reader.read(100_000):
                    writer.write(data)
        writer.close()


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, str]:
    """Exchange a token and close: the token and the path."""
    token = secrets.token_bytes(TOKEN)
    writer.write(token)
    assert await reader.readexactly(TOKEN) == token
    writer.close()
    await writer.wait_closed()
    return token.hex(), writer.get_extra_info("smc").path


async def connect(target: Any, **options: Any) -> tuple[str, str]:
    return await talk(*await smcfast.open_smc_connection(*target[:2], **options))


async def serve(parent: Channel, address: list[Any], plain: bool, options: dict[str, Any]) -> list[Any]:
    """Child: share a port until the parent has enough: what came by which path."""
    echo = Echo()
    sock = socket.create_server(tuple(address), reuse_port=True)
    if plain:
        server: Any = await asyncio.start_server(echo.plain, sock=sock)
    else:
        server = await smcfast.start_smc_server(echo.smc, sock=sock, **options)
    parent.send(sock.getsockname()[:2])
    assert await parent.areceive() == "enough"
    server.close()
    await server.wait_closed()
    return [echo.paths, echo.others]


@pytest.mark.parametrize(
    "kinds", [(False, False), (False, True), (True, False)], ids=["smc smc", "smc plain", "plain smc"]
)
async def test_processes_that_share_a_port(spawn: Spawn, loop_kind: str, kinds: tuple[bool, bool]) -> None:
    """Which of them the kernel picks is not known before, and the look-up may find the other one."""
    children = []
    target = ["127.0.0.1", 0]
    for plain in kinds:
        children.append(spawn(serve, target, plain, {}, loop=loop_kind))
        target = await children[-1].areceive()
    said: dict[str, str] = {}
    for _ in range(40):
        remembered.listeners._until.clear()
        token, path = await connect(target)
        said[token] = path
    heard: dict[str, str] = {}
    for child in children:
        child.send("enough")
        paths, others = await child.aresult()
        assert paths  # the kernel has given some to each
        assert others == []
        heard |= paths
    assert heard == said
    # Where the look-up finds the plain one, all are TCP; else those are that the plain one accepts.
    assert set(said.values()) == {"smc-d"} if not any(kinds) else "tcp" in said.values()


@pytest.mark.parametrize("plain", ["exact", "wildcard"])
async def test_a_plain_server_and_one_of_ours_on_one_port(spawn: Spawn, loop_kind: str, plain: str) -> None:
    """A wildcard beside an exact address: the kernel's rule says who is asked, and nobody waits for the other."""
    exact = spawn(serve, ["127.0.0.1", 0], plain == "exact", {}, loop=loop_kind)
    port = (await exact.areceive())[1]
    wildcard = spawn(serve, ["0.0.0.0", port], plain == "wildcard", {}, loop=loop_kind)
    await wildcard.areceive()
    for address, at_exact in (("127.0.0.1", True), ("127.0.0.2", False)):
        expected = "tcp" if at_exact == (plain == "exact") else "smc-d"
        for _ in range(3):
            assert (await connect((address, port)))[1] == expected
    assert not remembered.listeners._until
    for child in (exact, wildcard):
        child.send("enough")
        assert (await child.aresult())[1] == []


def fork_workers(parent: Channel, count: int) -> None:
    """Child: one listener, and workers that serve it, each saying its process id to every client; until they are killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        workers = []
        for _ in range(count):
            workers.append(os.fork())
            if not workers[-1]:
                asyncio.run(work(listener))
        parent.send([listener.getsockname(), workers])
    for _ in workers:
        os.wait()


async def work(listener: socket.socket) -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d\n" % os.getpid())
        await reader.read()
        writer.close()

    await smcfast.start_smc_server(hello, sock=listener)
    await asyncio.Event().wait()


async def test_workers_that_were_forked_with_one_listener(spawn: Spawn) -> None:
    """Every connection is on the ring, whoever accepts it, as long as one of them lives."""
    boss = spawn(fork_workers, 3)
    target, workers = await boss.areceive()
    try:
        while workers:
            await announced(target)
            for worker in workers:
                async with stopped(workers, worker):
                    reader, writer = await smcfast.open_smc_connection(*target)
                    assert writer.get_extra_info("smc").path == "smc-d"
                    assert int(await reader.readline()) == worker
                    writer.close()
                    await writer.wait_closed()
            last = workers.pop()
            os.kill(last, signal.SIGKILL)
            await eventually(lambda: not os.path.exists(f"/proc/{last}"))  # noqa: B023 - it is done within the turn
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
    await boss.aresult()


async def announced(target: Any) -> None:
    """Wait until some worker has the listener's name."""

    def is_there() -> bool:
        entry = netlink.listener_of(netlink.destination(target))
        return entry is not None and rendezvous.exists(rendezvous.listener_name(entry.cookie))

    await eventually(is_there)


@contextlib.asynccontextmanager
async def stopped(workers: list[int], but: int) -> AsyncIterator[None]:
    """All workers but one are stopped, so that it is the one that accepts."""
    others = [worker for worker in workers if worker != but]
    for worker in others:
        os.kill(worker, signal.SIGSTOP)
    try:
        await eventually(lambda: all(state(worker) == "T" for worker in others))
        yield
    finally:
        for worker in others:
            os.kill(worker, signal.SIGCONT)


async def serve_late(parent: Channel, seconds: float, backlog: int) -> list[Any]:
    """Child: accept nobody for a while, since a callback blocks the loop."""
    echo = Echo()
    server = await smcfast.start_smc_server(echo.smc, "127.0.0.1", 0, backlog=backlog)
    parent.send(server.sockets[0].getsockname())
    assert parent.receive() == "block"
    time.sleep(seconds)  # noqa: ASYNC251 - that is what happens
    assert await parent.areceive() == "enough"
    server.close()
    await server.wait_closed()
    return [echo.paths, echo.others]


async def test_a_server_that_accepts_three_seconds_late(spawn: Spawn, loop_kind: str) -> None:
    child = spawn(serve_late, 3.0, 100, loop=loop_kind)
    target = await child.areceive()
    child.send("block")
    token, path = await connect(target)
    assert path == "smc-d"
    child.send("enough")
    assert await child.aresult() == [{token: "smc-d"}, []]


async def test_a_full_backlog(spawn: Spawn, loop_kind: str) -> None:
    """The kernel lets some in and drops the others' first packets for a second or more; each finds its path."""
    child = spawn(serve_late, 0.5, 1, loop=loop_kind)
    target = await child.areceive()
    child.send("block")
    said = dict(await asyncio.gather(*(connect(target) for _ in range(8))))
    child.send("enough")
    # Who comes in behind the time-out of discovery is TCP, and after him everybody, for a while.
    assert await child.aresult() == [said, []]
    assert "smc-d" in said.values()


@pytest.mark.parametrize("there", [False, True])
async def test_a_crashed_server_whose_port_a_plain_one_takes(spawn: Spawn, loop_kind: str, there: bool) -> None:
    """Its name has gone with it, and so has what was known of it."""
    child = spawn(serve, ["127.0.0.1", 0], False, {}, loop=loop_kind)
    target = await child.areceive()
    assert (await connect(target))[1] == "smc-d"
    pair = await smcfast.open_smc_connection(*target) if there else None
    child.kill()
    echo = Echo()
    plain = await asyncio.start_server(echo.plain, *target)
    _, writer = again = await smcfast.open_smc_connection(*target)
    assert writer.get_extra_info("smc").reason == "peer_plain"
    token, _ = await talk(*again)
    if pair is not None:
        with pytest.raises(ConnectionResetError):
            await pair[0].read()
        pair[1].close()
    plain.close()
    await plain.wait_closed()
    assert (list(echo.paths), echo.others) == ([token], [])


async def test_a_client_that_is_cancelled_at_every_await() -> None:
    """Not a byte of the set-up reaches the application of the server, however far the client came."""
    echo = Echo()
    server = await smcfast.start_smc_server(echo.smc, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()
    await connect(target)
    for woken in (False, True):
        point = 0
        while True:
            opening = cancelled_at(point, smcfast.open_smc_connection(*target), woken=woken)
            task = asyncio.ensure_future(awaited(opening))
            await asyncio.wait([task])
            if not task.cancelled():
                assert (await talk(*task.result()))[1] == "smc-d"
                break
            await eventually(lambda: not server._welcome.pending)
            await turns()
            point += 1
        assert point >= 2
    server.close()
    server.close_clients()
    await server.wait_closed()
    assert set(echo.paths.values()) == {"smc-d"}
    assert set(echo.others) <= {""}


async def awaited(generator: Any) -> Any:
    return await generator


async def serve_jerkily(parent: Channel, seed: int) -> list[Any]:
    """Child: serve with a short time-out, and be busy at any moment."""
    import random

    echo = Echo()
    config = SmcConfig(handshake_timeout=0.2)
    server = await smcfast.start_smc_server(echo.smc, "127.0.0.1", 0, config=config)
    parent.send(server.sockets[0].getsockname())
    with jerks(random.Random(seed)):
        assert await parent.areceive() == "enough"
    server.close()
    await server.wait_closed()
    return [echo.paths, echo.others]


@contextlib.contextmanager
def jerks(rng: random.Random) -> Iterator[None]:
    """Block the loop at random moments for about as long as a handshake may take."""
    loop = asyncio.get_running_loop()
    handle: asyncio.TimerHandle

    def jerk() -> None:
        nonlocal handle
        time.sleep(rng.choice((0.0, 0.02, 0.1, 0.18, 0.25)))
        handle = loop.call_later(rng.uniform(0, 0.05), jerk)

    handle = loop.call_soon(jerk)  # type: ignore[assignment]
    try:
        yield
    finally:
        handle.cancel()


async def test_both_ends_agree_however_late_they_are(spawn: Spawn, loop_kind: str, rng: random.Random) -> None:
    """Time-outs of client and server pass at any step: never is one end on the ring and the other one not."""
    child = spawn(serve_jerkily, rng.getrandbits(32), loop=loop_kind)
    target = await child.areceive()
    config = SmcConfig(handshake_timeout=0.2)
    said: dict[str, str] = {}
    with jerks(rng):
        end = time.monotonic() + 4
        while time.monotonic() < end:
            remembered.listeners._until.clear()
            said |= dict(await asyncio.gather(*(connect(target, config=config) for _ in range(4))))
    child.send("enough")
    paths, others = await child.aresult()
    assert paths == said
    # A client that gives up connects anew; of its first connection there is an end to be seen at most.
    assert set(others) <= {""}


def squat(parent: Channel, cookie: int, uid: int) -> None:
    """Child of another user: have the names that a server wants, until the test has seen enough."""
    os.setgroups([])
    os.setuid(uid)
    with rendezvous.listen(rendezvous.holder_name(cookie), 8), rendezvous.claim(rendezvous.listener_name(cookie)):
        parent.send("here")
        assert parent.receive() == "go"
    parent.send("gone")
    assert parent.receive() == "enough"


@ROOT
async def test_another_user_who_has_the_servers_names(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """He can keep nobody from the ring: neither while he has them, nor by giving them up."""
    monkeypatch.setattr(registration, "PATROL", 0.01)
    echo = Echo()
    with listening("127.0.0.1") as (listeners, _):
        listener = listeners[0]
        target = listener.getsockname()
        child = spawn(squat, netlink.cookie(listener), 65534)
        assert await child.areceive() == "here"
        server = await smcfast.start_smc_server(echo.smc, sock=listener)
        assert (await connect(target))[1] == "smc-d"
        child.send("go")
        assert await child.areceive() == "gone"
        await announced(target)
        assert (await connect(target))[1] == "smc-d"
        server.close()
        await server.wait_closed()
    child.send("enough")
    await child.aresult()


@ROOT
async def test_another_user_who_announces_a_plain_server(spawn: Spawn, loop_kind: str) -> None:
    """It costs the first client the grace, and no later one anything."""
    echo = Echo()
    with listening("127.0.0.1") as (listeners, _):
        target = listeners[0].getsockname()
        child = spawn(squat, netlink.cookie(listeners[0]), 65534)
        assert await child.areceive() == "here"
        server = await asyncio.start_server(echo.plain, sock=listeners[0])
        reasons = []
        for _ in range(2):
            pair = await smcfast.open_smc_connection(*target)
            reasons.append(pair[1].get_extra_info("smc").reason)
            await talk(*pair)
        assert reasons == ["accepted_plain", "listener_remembered"]
        assert echo.others == []
        server.close()
        await server.wait_closed()
    child.send("go")
    assert await child.areceive() == "gone"
    child.send("enough")
    await child.aresult()
