"""A peer that writes whatever it likes into the shared memory, whenever it likes.

Either it stays within the protocol, or the connection is over with an error that blames it. This process neither crashes
nor hangs nor reads what is not there, and its other connections go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import smcfast
from smcfast import SmcConfig
from support import hostile
from support.addresses import port_of
from support.hostile import CLIENT_HALF, CONSUMER, HEADER, LIVE, PRODUCER, SERVER_HALF, Cursor, Memory, Watch
from support.process import descriptors
from support.streams import End, Pair, connected, eventually, pattern, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

RING = 16 * 1024
CONFIG = SmcConfig(rmb_size=RING, fallback="forbid")
VICTIMS = ("server", "client")
PROPER = (ConnectionResetError, smcfast.PeerMisbehaved)


class Attacked(NamedTuple):
    """A connection one of whose ends is hostile; the test has the other one."""

    victim: End
    peer: End
    memory: Memory
    peers_half: int
    victims_half: int


@contextlib.asynccontextmanager
async def attacked(victim: str) -> AsyncIterator[Attacked]:
    watch = Watch()
    async with connected(config=CONFIG) as pair:
        memory = watch.memory()
        if victim == "server":
            yield Attacked(pair.server, pair.client, memory, CLIENT_HALF, SERVER_HALF)
        else:
            yield Attacked(pair.client, pair.server, memory, SERVER_HALF, CLIENT_HALF)


async def exchange(pair: Pair | Attacked, data: bytes) -> None:
    """`data` goes there and back."""
    one, other = pair[0], pair[1]
    one.writer.write(data)
    assert await other.reader.readexactly(len(data)) == data
    other.writer.write(data)
    assert await one.reader.readexactly(len(data)) == data


def live_words() -> set[int]:
    return {half + word for half in (SERVER_HALF, CLIENT_HALF) for word in LIVE}


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_word_that_nobody_reads(victim: str, rng: random.Random) -> None:
    """The rest of the header page, magic and layout included, and the whole header page of the client's memory."""
    async with attacked(victim) as at:
        inert = sorted(set(range(HEADER // 8)) - live_words())
        assert len(inert) == 502
        for mapping, words in ((at.memory.server, inert), (at.memory.client, range(HEADER // 8))):
            memory = mapping.words()
            for word in words:
                for value in rng.sample(hostile.values(RING, rng), 4):
                    memory[word] = value
                    await exchange(at, b"hello")
        assert at.victim.info.path == "smc-d"


def verdict(word: int, value: int, sent: int) -> str:
    """What the victim has to find in a cursor of a connection on which it has sent `sent` bytes and got none."""
    cursor = Cursor.of(value)
    position = cursor.position(RING)
    if position is None or position > (RING if word == PRODUCER else sent):
        return "misbehaved"
    if word == PRODUCER:  # its flags count for nothing
        return "bytes" if position else "nothing"
    if cursor.state_flags & 0x20:
        return "reset"
    return "end" if cursor.state_flags & 0xC0 else "nothing"


async def finding(reader: asyncio.StreamReader) -> tuple[str, str]:
    """What a read finds, and its text."""
    reading = asyncio.ensure_future(reader.read(RING))
    await turns()
    if not reading.done():
        reading.cancel()
        await asyncio.wait([reading])
        return "nothing", ""
    error = reading.exception()
    if error is None:
        data = reading.result()
        assert len(data) <= RING
        return ("bytes" if data else "end"), ""
    if isinstance(error, smcfast.PeerMisbehaved):
        return "misbehaved", str(error)
    assert type(error) is ConnectionResetError, error
    return "reset", str(error)


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("word", [PRODUCER, CONSUMER], ids=["producer", "consumer"])
async def test_a_cursor(victim: str, word: int, rng: random.Random) -> None:
    """Legal or not is known for each value beforehand; what is not is named, and ends both directions."""
    found = set()
    for value in hostile.values(RING, rng, 12):
        sent = rng.choice([0, 1, 100, RING])
        async with attacked(victim) as at:
            at.victim.writer.write(bytes(sent))
            at.memory.put(at.peers_half + word, value)
            what, text = await finding(at.victim.reader)
            assert what == verdict(word, value, sent), (hex(value), sent, text)
            if what == "misbehaved":
                assert text.startswith("the peer misbehaved: producer cursor: ") == (word == PRODUCER), text
                at.victim.writer.write(b"more")
                with pytest.raises(smcfast.PeerMisbehaved):
                    await at.victim.writer.drain()
            found.add(what)
    assert "misbehaved" in found
    assert found >= {"bytes", "nothing"} if word == PRODUCER else found >= {"end", "reset"}


@pytest.mark.parametrize("victim", VICTIMS)
async def test_any_word_of_either_half_in_the_middle_of_a_transfer(victim: str, rng: random.Random) -> None:
    """Also the victim's own words, and those that only wake; both ends have a read and a drain that sleep."""
    data = pattern(3 * RING)
    for half in (SERVER_HALF, CLIENT_HALF):
        for word in LIVE:
            for value in rng.sample(hostile.values(RING, rng), 4):
                async with attacked(victim) as at:
                    at.victim.writer.write(data)
                    at.peer.writer.write(data)
                    waits = receive(at.victim.reader), receive(at.peer.reader), at.victim.writer.drain()
                    ends = [asyncio.ensure_future(wait) for wait in waits]
                    await turns(2)
                    at.memory.put(half + word, value)
                    await turns(20)
                    at.peer.writer.transport.abort()
                    await properly(ends)


async def receive(reader: asyncio.StreamReader) -> bytes:
    """Whatever comes, to whatever end."""
    got = bytearray()
    with contextlib.suppress(*PROPER):
        while piece := await reader.read(5000):
            got += piece
    return bytes(got)


async def properly(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """All of them end, and none with an error that a peer must not be able to cause."""
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert not isinstance(result, BaseException) or isinstance(result, (asyncio.CancelledError, *PROPER)), result


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("where", ["header", "rings"])
async def test_holes(victim: str, where: str) -> None:
    """A page that is gone comes back as zeros: bytes that the peer might have written, or cursors that went back."""
    async with attacked(victim) as at:
        await exchange(at, pattern(5000))
        if where == "header":
            at.memory.server.punch(0, HEADER)
            assert await finding(at.victim.reader) == (
                "misbehaved",
                "the peer misbehaved: producer cursor: goes backwards",
            )
        else:
            for mapping in (at.memory.server, at.memory.client):
                error = mapping.punch(HEADER, RING)
                assert error in (0, 1)  # EPERM where the kernel does not overcommit, and the pages are sealed
            await exchange(at, pattern(5000))


@pytest.mark.parametrize("victim", VICTIMS)
async def test_bytes_beside_the_ring(victim: str) -> None:
    """Whoever speaks over TCP, which both have agreed to keep silent, is cut off, with what it has written to the ring."""
    async with attacked(victim) as at:
        at.peer.writer.write(b"never trusted")
        at.peer.writer.transport._sock.send(b"beside the ring")  # type: ignore[attr-defined]
        await eventually(at.victim.writer.transport.is_closing)
        assert await finding(at.victim.reader) == (
            "misbehaved",
            "the peer misbehaved: TCP: bytes arrived beside the SMC connection",
        )
        with pytest.raises(ConnectionResetError):
            await at.peer.reader.read()


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_flood_of_wake_ups_and_words_without_end(victim: str, rng: random.Random) -> None:
    """Another thread writes as fast as it can, a legal word and an illegal one in turn: no loop here waits for its pleasure."""
    async with attacked(victim) as at:
        stop = threading.Event()
        words = [at.peers_half + word for word in LIVE]
        good = {word: at.memory.get(word) for word in words}

        def write() -> None:
            while not stop.is_set():
                word = rng.choice(words)
                at.memory.put(word, rng.choice([hostile.TOP, good[word]]))

        thread = threading.Thread(target=write)
        thread.start()
        try:
            at.victim.writer.write(bytes(2**20))  # more than may wait
            ends = [asyncio.ensure_future(receive(at.victim.reader)), asyncio.ensure_future(at.victim.writer.drain())]

            def over() -> bool:
                at.peer.writer.write(b"wake up")  # until it finds fault in its own words, and closes
                return all(end.done() for end in ends)

            await eventually(over)
            await properly(ends)
        finally:
            stop.set()
            thread.join()


async def hostile_end(parent: Channel, role: str, port: int, seed: int) -> None:
    """Child: one end of connections after connections, each attacked by a thread while bytes flow."""
    rng = random.Random(seed)
    watch = Watch()

    async def attack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        memory = watch.memory()
        stop = threading.Event()
        thread = threading.Thread(target=scramble, args=(memory, random.Random(rng.random()), stop))
        end = End(reader, writer)
        thread.start()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await pump(end)
        finally:
            stop.set()
            thread.join()
            writer.transport.abort()
        await turns()

    if role == "client":
        while await parent.areceive() == "again":
            await attack(*await smcfast.open_smc_connection("127.0.0.1", port, config=CONFIG))
            watch = Watch()
            parent.send("done")
        return
    busy: asyncio.Queue[End] = asyncio.Queue()
    server = await smcfast.start_smc_server(
        lambda reader, writer: busy.put_nowait(End(reader, writer)), "127.0.0.1", 0, config=CONFIG
    )
    parent.send(port_of(server.sockets))
    while await parent.areceive() == "again":
        await attack(*await busy.get())
        watch = Watch()
        parent.send("done")
    server.close()


def scramble(memory: Memory, rng: random.Random, stop: threading.Event) -> None:
    """Words, bytes and holes, at random."""
    words = sorted(live_words())
    values = hostile.values(RING, rng)
    while not stop.is_set():
        what = rng.random()
        if what < 0.8:
            word = rng.choice(words)
            # Small steps from what is there are the most likely to be taken for good.
            memory.put(
                word,
                rng.choice([rng.choice(values), memory.get(word) + (rng.randrange(-100, 5000) << 16) & hostile.TOP]),
            )
        elif what < 0.98:
            memory.server.words()[rng.randrange(HEADER // 8)] = rng.choice(values)
        else:
            rng.choice(memory).punch(rng.randrange(5) * HEADER, HEADER)


async def pump(end: End) -> None:
    """Write without end, read without end, until one of them fails."""

    async def write() -> None:
        data = pattern(RING // 3)
        while True:
            end.writer.write(data)
            await end.writer.drain()
            await asyncio.sleep(0)

    async def read() -> None:
        while await end.reader.read(5000):
            pass

    tasks = [asyncio.ensure_future(read()), asyncio.ensure_future(write())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await properly(tasks)


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_hostile_process(spawn: Spawn, loop_kind: str, victim: str, seed: int) -> None:
    """A process of its own scrambles words, bytes and pages while bytes flow both ways; the next connection is good."""
    rounds = 25
    async with connected(config=CONFIG) as bystander:
        async with opponent(spawn, loop_kind, victim, seed) as next_end:
            before = len(descriptors())
            for _ in range(rounds):
                end = await next_end()
                assert end.info.path == "smc-d"
                await pump(end)
                end.writer.close()
                await end.closed()
                await exchange(bystander, b"undisturbed")
                del end
            await eventually(lambda: gc.collect() >= 0 and len(descriptors()) <= before)


@contextlib.asynccontextmanager
async def opponent(spawn: Spawn, loop_kind: str, victim: str, seed: int) -> AsyncIterator[Callable[[], Any]]:
    """Gives connection after connection with a hostile process at the other end."""
    if victim == "client":
        child = spawn(hostile_end, "server", 0, seed, loop=loop_kind)
        port = await child.areceive()
        first = True

        async def connect() -> End:
            nonlocal first
            if not first:
                assert await child.areceive() == "done"
            first = False
            child.send("again")
            return End(*await smcfast.open_smc_connection("127.0.0.1", port, config=CONFIG))

        yield connect
    else:
        arrived: asyncio.Queue[End] = asyncio.Queue()
        server = await smcfast.start_smc_server(
            lambda reader, writer: arrived.put_nowait(End(reader, writer)), "127.0.0.1", 0, config=CONFIG
        )
        child = spawn(hostile_end, "client", port_of(server.sockets), seed, loop=loop_kind)
        first = True

        async def accept() -> End:
            nonlocal first
            if not first:
                assert await child.areceive() == "done"
            first = False
            child.send("again")
            return await arrived.get()

        try:
            yield accept
        finally:
            server.close()
    assert await child.areceive() == "done"
    child.send("enough")
    await child.aresult()
