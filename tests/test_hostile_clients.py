"""Clients that break a handshake on purpose: nonsense, silence, one byte at a time, crowds of them.

Whoever they are and however many, the server's memory and descriptors stay within what docs/limits.md says, and the next
honest client is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

import smcfast
from smcfast import SmcConfig, _core, _loop, netlink, rendezvous
from support import frames
from support.addresses import port_of
from support.echo import echoing
from support.loops import GUARD, run_within
from support.process import descriptors, resident
from support.steered import steered
from support.streams import eventually

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

LONG = SmcConfig(handshake_timeout=60)
ASSUMED = SmcConfig(assume=("*:*",), discovery=(), handshake_timeout=60)
CROWD = int(os.environ.get("TEST_CROWD", "2000"))
"""Half-open handshakes. A hundred thousand take minutes."""
PATIENCE = GUARD + CROWD / 100


pytestmark = pytest.mark.usefixtures("nothing_is_left")


async def talk(target: tuple[str, int], config: SmcConfig = LONG) -> str:
    """An honest client: its path."""
    reader, writer = await smcfast.open_smc_connection(*target, config=config)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()
    path: str = writer.get_extra_info("smc").path
    return path


def proposal() -> bytes:
    with steered(ASSUMED) as client:
        return client.says()


async def said(target: tuple[str, int], data: bytes) -> bytes:
    """What a server answers to `data` and the end of it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as tcp:
        tcp.setblocking(False)
        await loop.sock_connect(tcp, target)
        answer = b""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            await loop.sock_sendall(tcp, data)
            tcp.shutdown(socket.SHUT_WR)
            while piece := await loop.sock_recv(tcp, 1000):
                answer += piece
        return answer


async def test_a_proposal_that_ends_at_any_byte() -> None:
    """Nothing but the whole is answered, and once the first four bytes are those of CLC, nothing is the application's."""
    async with echoing(config=ASSUMED) as server:
        target = server.sockets[0].getsockname()
        whole = proposal()
        for length in range(len(whole)):
            answer = await said(target, whole[:length])
            assert answer == (whole[:length] if length < 4 else b""), length
        await eventually(lambda: not server._welcome.pending)
        assert await talk(target, ASSUMED) == "smc-d"


async def test_a_proposal_with_any_byte_changed(rng: random.Random) -> None:
    """Also its length, up to the greatest that fits into the field: the server answers, declines or closes, at once."""
    async with echoing(config=ASSUMED) as server:
        target = server.sockets[0].getsockname()
        whole = proposal()
        for at in range(len(whole)):
            changed = bytearray(whole)
            changed[at] ^= rng.choice([0x01, 0x80, 0xFF])
            answer = await said(target, bytes(changed))
            assert answer == changed or answer[:3] in (b"", b"\xe2\xd4\xc3"), at
        for length in (0, 1, 7, 8, 0x7FFF, 0xFFFF):
            await said(target, whole[:5] + length.to_bytes(2, "big") + whole[7:] + bytes(100))
        for nonsense in (
            whole[:4] * 1000,
            whole[:8] + b"\xff" * 70_000,
            whole + whole,
            b"\xe2\xd4\xc3\xc4" + bytes(1000),
        ):
            await said(target, nonsense)
        await eventually(lambda: not server._welcome.pending)
        assert await talk(target, ASSUMED) == "smc-d"


@pytest.mark.parametrize("pace", [1.0, 5.9])
def test_one_byte_a_second(pace: float) -> None:
    """One time for the whole set-up, not for each byte: it is over when it is over, on the machine's own clock."""
    here, there = (_core.Engine(asyncio.Future, lambda *_: None, lambda _: None, lambda: None) for _ in range(2))
    near, far = socket.socketpair()
    with near, far:
        client = _core.ClientSetup(there, near.fileno(), 16384, 0.0, 6.0, False)
        client.step(0.0)
        proposal = far.recv(4096)
        setup = _core.ServerSetup(here, near.fileno(), 16384, 100.0, 6.0, False)
        now = 100.0
        for byte in proposal:
            wait = setup.step(now)
            if wait is None:
                break
            assert wait[2] == 106.0
            assert setup.outcome() is None
            far.send(bytes([byte]))
            now += pace
        else:
            raise AssertionError("the whole Proposal had time")
        outcome = setup.outcome()
        assert outcome is not None
        assert outcome[0] == "failed"
        for end in (client, setup):
            end.release()


async def test_one_byte_now_and_then() -> None:
    """The same with a real clock and a server that has half a second: it hangs up while the client still writes."""
    config = SmcConfig(assume=("*:*",), discovery=(), handshake_timeout=0.5)
    async with echoing(config=config) as server:
        target = server.sockets[0].getsockname()
        loop = asyncio.get_running_loop()
        with socket.socket() as tcp:
            tcp.setblocking(False)
            await loop.sock_connect(tcp, target)
            data = proposal()
            written = 0
            with contextlib.suppress(ConnectionError):
                for byte in data:
                    await loop.sock_sendall(tcp, bytes([byte]))
                    written += 1
                    await asyncio.sleep(0.02)
            assert written < len(data)
        assert await talk(target, ASSUMED) == "smc-d"


async def test_silence_after_each_message() -> None:
    """After connect, after the Go, after the Proposal and before the Confirm: each costs one place for the time-out."""
    config = SmcConfig(handshake_timeout=0.5)
    async with echoing(config=config) as server:
        target = server.sockets[0].getsockname()
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            for steps in range(4):
                await half_open(loop, stack, target, steps)
            assert len(server._welcome.pending) == 4
            await eventually(lambda: not server._welcome.pending)
        assert await talk(target) == "smc-d"


async def half_open(
    loop: asyncio.AbstractEventLoop, stack: contextlib.ExitStack, target: tuple[str, int], steps: int
) -> None:
    """A client that goes `steps` steps of a handshake and no further, until `stack` is closed."""
    tcp = stack.enter_context(socket.socket())
    tcp.setblocking(False)
    door = stack.enter_context(rendezvous.listen(rendezvous.client_name(netlink.cookie(tcp)), 8))
    await loop.sock_connect(tcp, target)
    if steps == 0:
        await asyncio.sleep(0)
        return
    conn, _ = await loop.sock_accept(door)
    conn.setblocking(False)
    stack.enter_context(conn)
    hello = await frames.next_frame(loop, conn, loop.time() + 5)
    assert hello is not None
    client = stack.enter_context(steered(LONG))
    rendezvous.send(conn, *client.meet(stack, hello[0]))
    if steps > 1:
        await loop.sock_sendall(tcp, client.says())
    if steps > 2:
        assert await rendezvous.readable([tcp], loop.time() + 5)  # the Accept


def serve(parent: Channel, places: int, loop_kind: str) -> None:
    """Child: serve with so many places for handshakes, and tell how many descriptors and bytes it uses when asked."""

    async def serve() -> None:
        config = SmcConfig(max_pending_handshakes=places, handshake_timeout=60)
        async with echoing(config=config) as server:
            parent.send(port_of(server.sockets))
            while await parent.areceive(PATIENCE) == "how much?":
                parent.send([len(descriptors()), resident()])

    run_within(PATIENCE, loop_kind, serve)


@pytest.mark.timeout(PATIENCE + 20)
def test_a_crowd_of_half_open_handshakes(spawn: Spawn, loop_kind: str) -> None:
    """Wave after wave of clients that are found and say nothing: those beyond the places are TCP, and cost no more than that.

    While they are there, an honest client is TCP; when they have gone, it is smc-d again, and nothing has grown.
    """
    run_within(PATIENCE, loop_kind, lambda: crowd(spawn(serve, 64, loop_kind), 64, 250))


async def crowd(child: Child, places: int, wave: int) -> None:
    target = ("127.0.0.1", await child.areceive())

    async def usage() -> tuple[int, int]:
        child.send("how much?")
        fds, size = await child.areceive()
        return fds, size

    loop = asyncio.get_running_loop()
    assert await talk(target) == "smc-d"
    idle, peak, sizes = await usage(), 0, []
    for _ in range(-(-CROWD // wave)):
        with contextlib.ExitStack() as stack:
            for _ in range(wave):
                await half_open(loop, stack, target, 0)
            assert await talk(target) == "tcp"
            fds, size = await usage()
            peak = max(peak, fds)
            sizes.append(size)
        while (await usage())[0] > idle[0]:  # noqa: ASYNC110 - the child's end has no event here
            await asyncio.sleep(0)
    # A TCP connection each, and for each place the call at the client's door, another descriptor of TCP, and memory.
    assert idle[0] + wave <= peak <= idle[0] + wave + 3 * places + 8
    assert sizes[-1] <= sizes[0] + 2**24, sizes
    assert await talk(target) == "smc-d"
    child.send("enough")
    await child.aresult()


def send_without_end(conn: socket.socket, go: tuple[bytes, Sequence[int]]) -> None:
    while True:
        rendezvous.send(conn, *go)


async def test_a_client_that_opens_the_same_handshake_again_and_again() -> None:
    """Its Go twice, a Stop behind a Go, frames without end: the first counts, the rest is never read."""
    async with echoing(config=LONG) as server:
        target = server.sockets[0].getsockname()
        loop = asyncio.get_running_loop()
        with socket.socket() as tcp:
            tcp.setblocking(False)
            with rendezvous.listen(rendezvous.client_name(netlink.cookie(tcp)), 8) as door:
                await loop.sock_connect(tcp, target)
                conn, _ = await loop.sock_accept(door)
            conn.setblocking(False)
            with conn:
                hello = await frames.next_frame(loop, conn, loop.time() + 5)
                assert hello is not None
                with contextlib.ExitStack() as stack:
                    client = stack.enter_context(steered(LONG))
                    go = client.meet(stack, hello[0])
                    with pytest.raises(OSError):  # noqa: PT011 - its queue is full, or too many descriptors are under way
                        send_without_end(conn, go)
                    await loop.sock_sendall(tcp, client.says())
                memory = await frames.next_frame(loop, conn, loop.time() + 5)
                assert memory is not None
                rendezvous.close_fds(memory[1])
        await eventually(lambda: not server._welcome.pending)
        assert await talk(target) == "smc-d"
        assert _loop.engine().core.is_ours
