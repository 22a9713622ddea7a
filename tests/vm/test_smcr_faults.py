"""Processes that are killed and cables that are cut: the other end hears of it, and the next connection is SMC-R again.

At each survivor three connections hang when it happens: one in a read, one in a write for which there is no room, and one that
writes afterwards. Times are measured and printed (``-rP`` shows them); what is asserted are the limits that are promised, three times as wide where the
machine is emulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import smcfast
from support.patience import PATIENCE
from vm.support import network, smc
from vm.support.hosts import A, B
from vm.support.ours import CONFIG, ROLES, Pair, config_for, meeting
from vm.support.pattern import Pattern
from vm.support.peers import PeerFailed
from vm.support.smc import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.channel import Channel
    from vm.support.forked import ForkedChild
    from vm.support.ours import Meeting, Role
    from vm.support.peers import KernelPeer, Peer, SmcfastPeer

    MakePeer = Callable[[], KernelPeer]
    Spawn = Callable[..., ForkedChild]

TEST_LINK = 3
"""Seconds of silence after which either side tests its link."""
KILLED = 2 * PATIENCE
"""Seconds until smcfast has heard that a process at the other end was killed."""
SILENT = (TEST_LINK + 3) * PATIENCE
"""Until either side has heard of the end of a link that is silent, by a test if by nothing else."""
GONE = (TEST_LINK + 5) * PATIENCE
"""Until the kernel has done away with its link group."""
AGAIN = 1 * PATIENCE
"""For the next connection."""
SEED = 19
UNREAD = 50_000
"""Bytes that a receive buffer of the kernel's holds."""
MUCH = 8 << 20
"""More bytes than all buffers on the way hold."""
OURS = dataclasses.replace(CONFIG, testlink_s=TEST_LINK)


@pytest.fixture
def loop_kind() -> str:
    """How an end is heard of has nothing to do with the kind of the loop; `test_death.py` has both."""
    return "asyncio"


@pytest.fixture(autouse=True)
def short_tests() -> Iterator[None]:
    with network.setting("net.smc.smcr_testlink_time", TEST_LINK):
        yield


class Watch:
    """Seconds since it was made, or since it was started anew."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._begun = time.monotonic()

    def read(self) -> float:
        return round(time.monotonic() - self._begun, 2)


class Hung(NamedTuple):
    """What smcfast's ends were in: a read, a drain, and nothing yet."""

    tasks: list[asyncio.Task[None]]
    writer: asyncio.StreamWriter

    @classmethod
    async def begin(cls, streams: list[Any]) -> Hung:
        (reader, _), (_, full), (_, idle) = streams
        full.write(bytes(MUCH))
        tasks = [asyncio.create_task(_read(reader)), asyncio.create_task(_drain(full))]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        return cls(tasks, idle)

    async def end(self, limit: float) -> None:
        """All three end, with an error or, for the one that reads, the end of the stream."""
        self.writer.write(bytes(MUCH))
        async with asyncio.timeout(limit):
            await asyncio.gather(*self.tasks, _drain(self.writer))


async def _read(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        assert await reader.read(1) == b""


async def _drain(writer: asyncio.StreamWriter) -> None:
    with pytest.raises(ConnectionError):
        await writer.drain()


class TheirsHung(NamedTuple):
    """The same at a peer, whose own words are tickets."""

    peer: Peer
    tickets: list[int]
    sock: int

    @classmethod
    def begin(cls, peer: Peer, socks: list[int]) -> TheirsHung:
        reading, full, idle = socks
        return cls(peer, [peer.start("receive_some", reading, 1), peer.start("send", full, SEED, MUCH)], idle)

    async def end(self, limit: float) -> list[str]:
        """All three end, and how."""
        tickets = [*self.tickets, self.peer.start("send", self.sock, SEED, MUCH)]
        deadline = time.monotonic() + limit
        return [await _how(self.peer, ticket, deadline - time.monotonic()) for ticket in tickets]


async def _how(peer: Peer, ticket: int, limit: float) -> str:
    try:
        found = await peer.finish(ticket, limit)
    except PeerFailed as error:
        return str(error.strerror)
    assert found == "", found
    return "the end"


async def three(both: Meeting) -> list[Pair]:
    """Connections of one link group, which the kernel has as well."""
    pairs = [await both.connect() for _ in range(3)]
    for pair in pairs:
        await pair.assert_smc_r()
    return pairs


async def closed(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def kernel_groups() -> set[int]:
    return {group.id for group in smc.groups() if group.connections}


def wait_for_the_end_of(groups: set[int]) -> None:
    """The kernel does away with these link groups."""
    network.wait_until(lambda: not groups & {group.id for group in smc.groups()}, "end of the kernel's link group")


async def end_of_smcfast(parent: Channel, role: Role) -> None:
    """Child: listens and says where, or connects to the ports that it is told; the paths that its connections take."""
    kept = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append((reader, writer))
        parent.send(writer.get_extra_info("smc").path)

    # A client too: then it has the program of the TCP option, which takes a while once.
    server = await smcfast.start_smc_server(keep, A.address, 0, config=OURS)
    parent.send(server.sockets[0].getsockname()[1])
    while role == "client":
        port = await parent.areceive()
        await keep(*await smcfast.open_smc_connection(B.address, port, local_addr=(A.address, 0), config=OURS))
    await parent.areceive()


class Killable:
    """smcfast in a process that may be killed, and the kernel at the other end."""

    def __init__(self, role: Role, spawn: Spawn, kernel: KernelPeer) -> None:
        self.role = role
        self.child = spawn(end_of_smcfast, role)
        self.kernel = kernel
        self.listener, self.port = 0, 0

    async def ready(self) -> Killable:
        """Whoever is the server listens."""
        self.port = await self.child.areceive()
        if self.role == "client":
            self.listener, self.port = await self.kernel.listen(B.address)
        return self

    async def connect(self) -> int:
        """The kernel's socket of one connection more, which is SMC-R by the word of both sides."""
        if self.role == "client":
            accepting = self.kernel.start("accept", self.listener)
            self.child.send(self.port)
            sock = await self.kernel.finish(accepting)
        else:
            sock = await self.kernel.connect(A.address, self.port, B.address)
        assert await self.child.areceive() == "smc-r"
        assert (await self.kernel.about(sock)).mode is Mode.SMC_R
        return sock


@pytest.mark.parametrize("role", ROLES)
async def test_smcfast_is_killed_and_the_kernel_hears_of_it(spawn: Spawn, kernel_peer: MakePeer, role: Role) -> None:
    kernel = kernel_peer()
    before = kernel_groups()
    doomed = await Killable(role, spawn, kernel).ready()
    following = await Killable(role, spawn, kernel).ready()
    hung = TheirsHung.begin(kernel, [await doomed.connect() for _ in range(3)])
    groups = kernel_groups() - before
    assert len(groups) == 1
    doomed.child.kill()
    watch = Watch()
    sock = await following.connect()
    assert watch.read() < AGAIN
    print("connected again:", watch.read())
    print("how it ended:", await hung.end(SILENT))
    print("ended:", watch.read())
    wait_for_the_end_of(groups)
    assert watch.read() < GONE
    print("link group gone:", watch.read())
    await kernel.do("send", sock, SEED, 1000)


@pytest.mark.parametrize("role", ROLES)
async def test_a_program_of_the_kernels_is_killed_and_smcfast_hears_of_it(kernel_peer: MakePeer, role: Role) -> None:
    doomed, following = kernel_peer(), kernel_peer()
    async with meeting(role, doomed, OURS) as first, meeting(role, following, OURS) as second:
        pairs = await three(first)
        hung = await Hung.begin([(pair.reader, pair.writer) for pair in pairs])
        doomed.kill()
        watch = Watch()
        again = await second.connect()
        assert watch.read() < AGAIN
        print("connected again:", watch.read())
        await again.assert_smc_r()
        watch.start()
        await hung.end(KILLED)
        print("ended:", watch.read())
        await closed([pair.writer for pair in (*pairs, again)])


@pytest.mark.parametrize("role", ROLES)
async def test_smcfast_is_killed_and_smcfast_hears_of_it(spawn: Spawn, role: Role) -> None:
    """`role` is that of the process that is killed."""
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    children = [spawn(end_of_smcfast, role) for _ in range(2)]
    server = await smcfast.start_smc_server(lambda *pair: accepted.put(pair), B.address, 0, config=OURS)
    port = server.sockets[0].getsockname()[1]
    ports = [await child.areceive() for child in children]

    async def connect(number: int) -> Any:
        if role == "client":
            children[number].send(port)
            pair = await accepted.get()
        else:
            pair = await smcfast.open_smc_connection(A.address, ports[number], local_addr=(B.address, 0), config=OURS)
        assert await children[number].areceive() == pair[1].get_extra_info("smc").path == "smc-r"
        return pair

    pairs = [await connect(0) for _ in range(3)]
    hung = await Hung.begin(pairs)
    children[0].kill()
    watch = Watch()
    pairs.append(await connect(1))
    assert watch.read() < AGAIN
    print("connected again:", watch.read())
    watch.start()
    await hung.end(KILLED)
    print("ended:", watch.read())
    await closed([writer for _, writer in pairs])
    server.close()


@pytest.mark.parametrize("role", ROLES)
async def test_a_cable_is_cut_and_both_sides_hear_of_it(kernel_peer: MakePeer, role: Role) -> None:
    kernel = kernel_peer()
    before = kernel_groups()
    async with meeting(role, kernel, OURS) as both:
        pairs = await three(both)
        groups = kernel_groups() - before
        assert len(groups) == 1
        hung = await Hung.begin([(pair.reader, pair.writer) for pair in pairs])
        theirs = TheirsHung.begin(kernel, [pair.sock for pair in pairs])
        with network.down(A):
            watch = Watch()
            await hung.end(SILENT)
            print("ended here:", watch.read())
            print("how it ended there:", await theirs.end(SILENT - watch.read()))
            print("ended there:", watch.read())
            wait_for_the_end_of(groups)
            assert watch.read() < GONE
            print("link group gone:", watch.read())
        watch.start()
        again = await both.connect()
        assert watch.read() < AGAIN
        print("connected again:", watch.read())
        await again.assert_smc_r()
        await closed([pair.writer for pair in (*pairs, again)])


@pytest.mark.parametrize("role", ROLES)
async def test_a_cable_is_cut_between_two_smcfast(smcfast_peer: Callable[..., SmcfastPeer], role: Role) -> None:
    peer = smcfast_peer(testlink_s=float(TEST_LINK))
    async with meeting(role, peer, config_for(peer, testlink_s=float(TEST_LINK))) as both:
        pairs = await three(both)
        hung = await Hung.begin([(pair.reader, pair.writer) for pair in pairs])
        theirs = TheirsHung.begin(peer, [pair.sock for pair in pairs])
        with network.down(A):
            watch = Watch()
            await hung.end(SILENT)
            print("ended here:", watch.read())
            print("how it ended there:", await theirs.end(SILENT - watch.read()))
            print("ended there:", watch.read())
        again = await both.connect()
        await again.assert_smc_r()
        await closed([pair.writer for pair in (*pairs, again)])


A_REAL_END = ("env",)
"""Before a child's command: a program of its own then, which ends as programs do, and no fork that just leaves."""


async def end_with_a_word(parent: Channel, port: int) -> None:
    """Child: a connection, which it closes behind the peer or before it; then its program ends."""
    reader, writer = await smcfast.open_smc_connection(B.address, port, local_addr=(A.address, 0), config=OURS)
    parent.send(writer.get_extra_info("smc").path)
    if length := await parent.areceive():
        writer.write(Pattern(SEED).take(0, length))
    else:
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


@pytest.fixture
def no_tests() -> Iterator[None]:
    """Of itself, a link group without a connection stays for ten minutes."""
    with network.setting("net.smc.smcr_testlink_time", 0):
        yield


async def test_a_program_that_ends_takes_its_link_group_along(
    spawn: Spawn, kernel_peer: MakePeer, no_tests: None
) -> None:
    kernel, before = kernel_peer(), {group.id for group in smc.groups()}
    listener, port = await kernel.listen(B.address)
    child = spawn(end_with_a_word, port, within=A_REAL_END)
    sock = await kernel.accept(listener)
    assert await child.areceive() == "smc-r"
    (group,) = {each.id for each in smc.groups()} - before
    await kernel.do("close", sock)
    child.send(0)
    await child.aresult()
    wait_for_the_end_of({group})


async def test_what_a_program_has_sent_outlives_it(spawn: Spawn, kernel_peer: MakePeer) -> None:
    kernel = kernel_peer()
    listener, port = await kernel.listen(B.address)
    child = spawn(end_with_a_word, port, within=A_REAL_END)
    sock = await kernel.accept(listener)
    assert await child.areceive() == "smc-r"
    child.send(UNREAD)
    await child.aresult()
    assert await kernel.do("receive_to_end", sock, SEED) == UNREAD
