"""The rendezvous over real sockets: whatever happens, both ends come to the same answer, and nothing is left behind.

No handshake follows here: GO and HELLO are two bytes each, for it is their order that decides and not their content.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from smcfast import SmcConfig, netlink, remembered, rendezvous
from smcfast.discovery import GRACE, STRANGERS_MAX, Caller, Invitation
from smcfast.errors import Fallback
from smcfast.registration import Registration
from support import frames
from support.addresses import listening
from support.process import abstract_names, become, descriptors

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

CONFIG = SmcConfig()
NOBODY = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")


pytestmark = pytest.mark.usefixtures("nothing_is_left")


@contextlib.asynccontextmanager
async def registered(*listeners: socket.socket) -> AsyncIterator[None]:
    """Announce listening sockets as smcfast's servers do."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for listener in listeners:
            listener.setblocking(False)
            stack.enter_context(contextlib.closing(Registration(loop, listener)))
        yield


async def client(target: tuple[Any, ...], config: SmcConfig = CONFIG, patience: float = 5.0) -> tuple[str, bytes]:
    """Connect as smcfast does, then say what came of it: "smc" or the reason, and the first application bytes."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET) as tcp:
        tcp.setblocking(False)
        with contextlib.closing(Invitation(tcp, target, config)) as invitation:
            await loop.sock_connect(tcp, target)
            answer = await invitation.answer(tcp, loop.time() + patience)
        result = answer.name if isinstance(answer, Fallback) else "smc"
        if not isinstance(answer, Fallback):
            with answer:
                hello = await frames.next_frame(loop, answer, loop.time() + patience)
                if hello is None or not hello[0] or not frames.send_frame(answer, b"GO"):
                    result = "stopped"
        return result, await loop.sock_recv(tcp, 100)


async def server(
    listener: socket.socket, config: SmcConfig = CONFIG, *, busy: bool = False, patience: float = 5.0, say: bytes = b"!"
) -> str:
    """Accept as smcfast does, then tell the client what this end thinks: `say` after "smc" or the reason."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    tcp, _ = await loop.sock_accept(listener)
    with tcp, contextlib.closing(Caller(tcp, config, busy)) as caller:
        result = await _decision(loop, caller, patience)
        await loop.sock_sendall(tcp, say + result.encode())
        return result


async def _decision(loop: asyncio.AbstractEventLoop, caller: Caller, patience: float) -> str:
    if caller.conn is None:
        assert caller.why is not None
        return caller.why.name
    if not frames.send_frame(caller.conn, b"HI"):
        return "stopped"
    decision = await frames.last_frame(loop, caller.conn, loop.time() + patience)
    if decision is None:
        return "timeout"
    return "smc" if decision[0] == b"GO" else "stopped"


def target_of(listener: socket.socket) -> tuple[Any, ...]:
    return tuple(listener.getsockname())


async def both(listener: socket.socket, **options: Any) -> tuple[str, str]:
    """What client and server say of one connection."""
    served = asyncio.create_task(server(listener, **options))
    (result, data), told = await asyncio.gather(client(target_of(listener)), served)
    assert data == b"!" + told.encode()
    return result, told


async def test_two_of_smcfast_meet(host: str) -> None:
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            for listener in listeners:
                assert await both(listener) == ("smc", "smc")


async def test_a_plain_server_costs_nothing(host: str) -> None:
    """No name, no wait: the client does not even open a door."""
    with listening(host) as (listeners, _), socket.socket(listeners[0].family) as tcp:
        with contextlib.closing(Invitation(tcp, target_of(listeners[0]), CONFIG)) as invitation:
            assert invitation.why is not None
            assert invitation.why.name == "peer_plain"
            assert abstract_names() == set()


async def test_a_plain_client_costs_nothing(host: str) -> None:
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            listener = listeners[0]
            tcp = socket.create_connection(target_of(listener)[:2], timeout=5)
            with tcp:
                assert await server(listener) == "peer_plain"
                assert tcp.recv(100) == b"!peer_plain"


async def test_a_late_accept_is_waited_for(host: str) -> None:
    """A server that is busy for longer than the grace has not accepted, so the client goes on waiting."""
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            waiting = asyncio.create_task(client(target_of(listeners[0]), patience=1000))
            await asyncio.sleep(6 * GRACE)  # the time is what is tested; more of it changes nothing
            assert names_of_clients() != set()
            assert await server(listeners[0]) == "smc"
            assert await waiting == ("smc", b"!smc")


async def test_nobody_accepts(host: str) -> None:
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            waiting = asyncio.create_task(client(target_of(listeners[0]), patience=0.2))
            await _until(lambda: bool(names_of_clients()))
            await _until(lambda: not names_of_clients())
            assert not waiting.done()  # It is TCP, and waits for the server's bytes like every TCP client.
            assert await server(listeners[0]) == "peer_plain"
            assert await waiting == ("discovery_timeout", b"!peer_plain")
            assert netlink.cookie(listeners[0]) in remembered.listeners


async def test_a_plain_acceptor_on_an_announced_listener(host: str) -> None:
    """It costs the grace once; then the listener is remembered."""
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            loop, listener = asyncio.get_running_loop(), listeners[0]
            waiting = asyncio.create_task(client(target_of(listener), patience=1000))
            tcp, _ = await loop.sock_accept(listener)
            with tcp:
                await _until(lambda: not names_of_clients())
                tcp.send(b"hello")
                assert await waiting == ("accepted_plain", b"hello")
            with (
                socket.socket(listener.family) as again,
                contextlib.closing(Invitation(again, target_of(listener), CONFIG)) as invitation,
            ):
                assert invitation.why is not None
                assert invitation.why.name == "listener_remembered"


async def test_a_server_that_speaks_first_is_not_delayed(host: str) -> None:
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            loop, listener = asyncio.get_running_loop(), listeners[0]
            waiting = asyncio.create_task(client(target_of(listener), patience=1000))
            tcp, _ = await loop.sock_accept(listener)
            with tcp:
                tcp.send(b"220 ready")
                assert await waiting == ("server_spoke_first", b"220 ready")


async def test_a_server_that_hangs_up_at_once(host: str) -> None:
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            waiting = asyncio.create_task(client(target_of(listeners[0]), patience=1000))
            tcp, _ = await asyncio.get_running_loop().sock_accept(listeners[0])
            tcp.close()
            assert await waiting == ("peer_plain", b"")


async def test_a_busy_server_says_so(host: str) -> None:
    """The client is told at once, is not kept for the grace, and does not remember the listener."""
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            loop = asyncio.get_running_loop()
            waiting = asyncio.create_task(client(target_of(listeners[0]), patience=1000))
            tcp, _ = await loop.sock_accept(listeners[0])
            with tcp, contextlib.closing(Caller(tcp, CONFIG, busy=True)) as caller:
                assert caller.conn is None
                assert caller.why is not None
                assert caller.why.name == "limit"
                await _until(lambda: not names_of_clients())
                tcp.send(b"hello")
                assert await waiting == ("stopped", b"hello")
            assert netlink.cookie(listeners[0]) not in remembered.listeners


def names_of_clients() -> set[str]:
    return {name for name in abstract_names() if name.startswith("smcfast/c/")}


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - no event tells of a name that has gone
        await asyncio.sleep(0.001)


async def test_discovery_switched_off_at_either_end(host: str) -> None:
    off = SmcConfig(discovery=())
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            listener = listeners[0]
            served = asyncio.create_task(server(listener))
            assert await client(target_of(listener), off) == ("disabled", b"!peer_plain")
            assert await served == "peer_plain"
            served = asyncio.create_task(server(listener, off))
            result, data = await client(target_of(listener))
            assert data == b"!disabled"
            assert result in ("accepted_plain", "server_spoke_first")
            assert await served == "disabled"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"])
async def test_a_dual_stack_listener(address: str) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        async with registered(listener):
            served = asyncio.create_task(server(listener))
            assert (await client((address, listener.getsockname()[1])))[0] == "smc"
            assert await served == "smc"


async def test_a_plain_exact_listener_beside_an_announced_wildcard() -> None:
    with socket.create_server(("0.0.0.0", 0), reuse_port=True) as wildcard:
        port = wildcard.getsockname()[1]
        with socket.create_server(("127.0.0.1", port), reuse_port=True) as exact:
            async with registered(wildcard):
                served = asyncio.create_task(server(exact))
                assert await client(("127.0.0.1", port)) == ("peer_plain", b"!peer_plain")
                assert await served == "peer_plain"
                served = asyncio.create_task(server(wildcard))
                assert await client(("127.0.0.2", port)) == ("smc", b"!smc")
                assert await served == "smc"


@pytest.mark.parametrize("announced", [2, 1])
async def test_listeners_that_share_a_port(announced: int) -> None:
    """SO_REUSEPORT: the look-up may find another listener than the connect, and the ends agree all the same."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as one:
        port = one.getsockname()[1]
        with socket.create_server(("127.0.0.1", port), reuse_port=True) as two:
            async with registered(*(one, two)[:announced]):
                kinds = [CONFIG, CONFIG if announced == 2 else SmcConfig(discovery=())]
                served = [asyncio.create_task(_serve_all(*each)) for each in zip((one, two), kinds, strict=True)]
                for _ in range(20):
                    remembered.listeners._until.clear()
                    result, data = await client(("127.0.0.1", port))
                    assert (result == "smc") == (data == b"!smc")
                    assert announced == 1 or result == "smc"
                for each in served:
                    each.cancel()
                await asyncio.wait(served)


async def _serve_all(listener: socket.socket, config: SmcConfig) -> None:
    while True:
        await server(listener, config)


async def test_giving_up_at_any_moment(host: str, rng: random.Random) -> None:
    """Both patiences run out around the moment of the decision, in every order: never does one end think otherwise."""
    outcomes = set()
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            # On a machine that is busy all the others may be too short.
            patiences = [
                (1000.0, 1000.0),
                (0.0, 0.0),
                *((rng.uniform(0, 2e-3), rng.uniform(0, 2e-3)) for _ in range(150)),
            ]
            for theirs, patience in patiences:
                remembered.listeners._until.clear()
                delay = rng.uniform(0, 2e-3)
                asked = asyncio.create_task(client(target_of(listeners[0]), patience=theirs))
                await asyncio.sleep(delay)
                told = await server(listeners[0], patience=patience)
                result, data = await asked
                assert data == b"!" + told.encode()
                assert (result == "smc") == (told == "smc"), (result, told)
                outcomes.add(result == "smc")
    assert outcomes == {True, False}


async def test_cancelling_the_client_at_any_moment(host: str, rng: random.Random) -> None:
    """Nothing is left behind (see the fixture), and the server goes on as TCP or sees the end."""
    with listening(host) as (listeners, _):
        async with registered(*listeners):
            for _ in range(100):
                asked = asyncio.create_task(client(target_of(listeners[0])))
                served = asyncio.create_task(server(listeners[0], patience=5))
                await asyncio.sleep(rng.uniform(0, 1e-3))
                asked.cancel()
                await asyncio.wait([asked])
                if asked.cancelled():
                    served.cancel()
                await asyncio.wait([served])
                _drain(listeners[0])


def _drain(listener: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()


async def test_after_giving_up_the_other_side_knows() -> None:
    """Who stops listening lets nothing more in: a send fails then, and is not lost in a queue."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        assert await frames.last_frame(loop, ours, loop.time()) is None
        assert not frames.send_frame(theirs, b"GO")


async def test_frames_and_descriptors() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = descriptors()
    with ours, theirs:
        ours.setblocking(False)
        assert rendezvous.take_frame(ours) is None
        assert frames.send_frame(theirs, b"two", [0, 1])
        packet = rendezvous.take_frame(ours)
        assert packet is not None
        frame, fds = packet
        assert (frame, len(fds), [os.get_inheritable(fd) for fd in fds]) == (b"two", 2, [False, False])
        rendezvous.close_fds(fds)
        assert descriptors() == before
        theirs.close()
        assert rendezvous.take_frame(ours) == (b"", [])


def stranger(parent: Channel, name: str, uid: int) -> None:
    """Child of another user: call the client's door until the test has seen enough."""
    become(uid)
    conns = []
    parent.send("ready")
    while parent.receive() == "call":
        with contextlib.suppress(OSError):
            conns.append(rendezvous.call(bytes.fromhex(name)))
        parent.send("called")
    for conn in conns:
        conn.close()


@ROOT
async def test_a_stranger_at_the_door_is_sent_away(spawn: Spawn, host: str) -> None:
    loop = asyncio.get_running_loop()
    with listening(host) as (listeners, _), socket.socket(listeners[0].family) as tcp:
        async with registered(*listeners):
            tcp.setblocking(False)
            name = rendezvous.client_name(netlink.cookie(tcp))
            with contextlib.closing(Invitation(tcp, target_of(listeners[0]), CONFIG)) as invitation:
                child = spawn(stranger, name.hex(), NOBODY)
                await child.areceive()
                await loop.sock_connect(tcp, target_of(listeners[0]))
                answer = asyncio.create_task(invitation.answer(tcp, loop.time() + 5))
                for _ in range(3):
                    child.send("call")
                    assert await child.areceive() == "called"
                assert not answer.done()
                assert await server(listeners[0], patience=0) == "timeout"  # it called, and had no patience
                conn = await answer
                assert isinstance(conn, socket.socket)
                assert rendezvous.credentials(conn) == (os.getpid(), os.geteuid())
                conn.close()
                child.send("enough")
                await child.aresult()


@ROOT
async def test_a_stranger_who_is_allowed_is_still_not_the_server(spawn: Spawn) -> None:
    """The connection is accepted, and another user's process is at the door first: only the acceptor's own user counts."""
    loop = asyncio.get_running_loop()
    config = SmcConfig(allow_uids=(NOBODY,))
    with listening("127.0.0.1") as (listeners, _), socket.socket() as tcp:
        async with registered(*listeners):
            tcp.setblocking(False)
            child = spawn(stranger, rendezvous.client_name(netlink.cookie(tcp)).hex(), NOBODY)
            await child.areceive()
            with contextlib.closing(Invitation(tcp, target_of(listeners[0]), config)) as invitation:
                await loop.sock_connect(tcp, target_of(listeners[0]))
                accepted, _ = await loop.sock_accept(listeners[0])
                child.send("call")
                assert await child.areceive() == "called"
                with accepted, contextlib.closing(Caller(accepted, config, busy=False)) as caller:
                    assert caller.conn is not None
                    conn = await invitation.answer(tcp, loop.time() + 5)
                    assert isinstance(conn, socket.socket)
                    assert rendezvous.credentials(conn)[1] == os.geteuid()
                    conn.close()
            child.send("enough")
            await child.aresult()


@ROOT
async def test_a_crowd_of_strangers_ends_the_wait(spawn: Spawn) -> None:
    loop = asyncio.get_running_loop()
    with listening("127.0.0.1") as (listeners, _), socket.socket() as tcp:
        async with registered(*listeners):
            tcp.setblocking(False)
            name = rendezvous.client_name(netlink.cookie(tcp))
            with contextlib.closing(Invitation(tcp, target_of(listeners[0]), CONFIG)) as invitation:
                child = spawn(stranger, name.hex(), NOBODY)
                await child.areceive()
                await loop.sock_connect(tcp, target_of(listeners[0]))
                answer = asyncio.create_task(invitation.answer(tcp, loop.time() + 5))
                calls = 0
                while not answer.done():
                    child.send("call")
                    assert await child.areceive() == "called"
                    calls += 1
                result = await answer
                assert calls >= STRANGERS_MAX
                assert isinstance(result, Fallback)
                assert result.name == "uid"
                child.send("enough")
                await child.aresult()


def squat(parent: Channel, name: str, uid: int) -> None:
    """Child of another user: hold a name that it may know by chance or by counting cookies."""
    become(uid)
    with rendezvous.listen(bytes.fromhex(name), 1) as door:
        door.setblocking(True)
        parent.send("squatting")
        conn, _ = door.accept() if parent.receive() == "take" else (None, None)
        if conn is not None:
            conn.setblocking(True)
            parent.send(conn.recv(100).hex())
            conn.close()


@ROOT
@pytest.mark.parametrize("allowed", [(), (NOBODY,)])
async def test_a_squatter_on_the_clients_name(spawn: Spawn, allowed: tuple[int, ...]) -> None:
    """The client is TCP at once; the server sees from the uid that it is not the client whom it has reached."""
    loop = asyncio.get_running_loop()
    with listening("127.0.0.1") as (listeners, _), socket.socket() as tcp:
        async with registered(*listeners):
            tcp.setblocking(False)
            child = spawn(squat, rendezvous.client_name(netlink.cookie(tcp)).hex(), NOBODY)
            assert await child.areceive() == "squatting"
            with contextlib.closing(Invitation(tcp, target_of(listeners[0]), CONFIG)) as invitation:
                assert invitation.why is not None
                assert invitation.why.name == "name_taken"
                await loop.sock_connect(tcp, target_of(listeners[0]))
                child.send("take")
                assert await server(listeners[0], SmcConfig(allow_uids=allowed)) == "uid"
                assert await child.areceive() == ""  # not even HELLO
                await child.aresult()


def connect_as(parent: Channel, port: int, uid: int) -> str:
    """Child of another user: a client of smcfast."""
    become(uid)
    return asyncio.run(client(("127.0.0.1", port), SmcConfig(allow_uids=(0,))))[0]


@ROOT
@pytest.mark.parametrize(("allowed", "expected"), [((), "uid"), ((NOBODY,), "smc")])
async def test_another_user_needs_leave(spawn: Spawn, allowed: tuple[int, ...], expected: str) -> None:
    with listening("127.0.0.1") as (listeners, port):
        async with registered(*listeners):
            child = spawn(connect_as, port, NOBODY)
            told = await server(listeners[0], SmcConfig(allow_uids=allowed))
            assert told == expected
            # A refused client may see the server's bytes and its end before it looks at its door.
            assert await child.aresult() in (("smc",) if allowed else ("stopped", "server_spoke_first"))


@ROOT
async def test_a_server_of_another_user_needs_leave(spawn: Spawn) -> None:
    """The client refuses, and the server finds out that it is TCP."""
    child = spawn(serve_as, NOBODY)
    port = await child.areceive()
    assert (await client(("127.0.0.1", port)))[0] == "uid"
    assert await child.aresult() == "stopped"


async def serve_as(parent: Channel, uid: int) -> str:
    """Child of another user: a server of smcfast."""
    become(uid)
    with listening("127.0.0.1") as (listeners, port):
        async with registered(*listeners):
            parent.send(port)
            return await server(listeners[0], SmcConfig(allow_uids=(0,)))
