"""The peer of a blocking socket is killed, stopped or breaks the rules: whoever waits for it hears of it, and at once."""

from __future__ import annotations

import os
import selectors
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast.ringsocket import RingSocket
from support.process import descriptors
from support.sockets import (
    GUARD,
    PATHS,
    Beside,
    assert_path,
    calling,
    config_of,
    connected,
    received,
    send_for_ever,
    serving,
    sleeps,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


def hold(parent: Channel, path: str, words: str = "") -> None:
    """Serve one client, say something, and then nothing more."""
    with serving(path=path, spin_us=0) as listener:
        parent.send(listener.getsockname()[1])
        server, _ = listener.accept()
        with server:
            server.sendall(words.encode())
            parent.send("served")
            parent.receive()


def held(spawn: Spawn, path: str, words: str = "") -> tuple[Child, smcfast.SmcSocket]:
    child = spawn(hold, path, words)
    client = smcfast.create_connection(("127.0.0.1", child.receive()), GUARD, config=config_of(path, spin_us=0))
    assert_path(client, path)
    assert child.receive() == "served"
    return child, client


def test_a_pending_recv_hears_of_a_kill(spawn: Spawn, path: str) -> None:
    child, client = held(spawn, path)
    with client:
        reader = Beside(client.recv, 1)
        if path == "smc-d":
            sleeps(client, "stalls_received")
        child.kill()
        assert outcome(reader.result, path) == "end"
        if path == "smc-d":
            for call in (lambda: client.recv(1), lambda: client.sendall(b"x")):
                with pytest.raises(ConnectionResetError):
                    call()


def test_a_pending_sendall_hears_of_a_kill(spawn: Spawn, path: str) -> None:
    child, client = held(spawn, path)
    with client:
        writer = Beside(client.sendall, bytes(50_000_000))
        if path == "smc-d":
            sleeps(client, "stalls_sent")
        child.kill()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            writer.result()


def test_both_threads_of_one_socket_hear_of_it(spawn: Spawn) -> None:
    child, client = held(spawn, "smc-d")
    with client:
        waiting = [Beside(client.recv, 1), Beside(client.sendall, bytes(1_000_000)), Beside(client.recv, 1)]
        sleeps(client, "stalls_received", 2)
        sleeps(client, "stalls_sent")
        child.kill()
        for one in waiting:
            with pytest.raises(ConnectionResetError):
                one.result()


def test_what_a_killed_peer_had_sent_can_be_read(spawn: Spawn) -> None:
    child, client = held(spawn, "smc-d", "last words")
    with client:
        child.kill()
        assert received(client, 10) == b"last words"
        with pytest.raises(ConnectionResetError):
            client.recv(1)


@pytest.mark.parametrize("event", [selectors.EVENT_READ, selectors.EVENT_WRITE])
def test_a_selector_hears_of_a_kill(spawn: Spawn, path: str, event: int) -> None:
    child, client = held(spawn, path)
    with client, selectors.DefaultSelector() as selector:
        client.setblocking(False)
        if event == selectors.EVENT_WRITE:
            with pytest.raises(BlockingIOError):
                send_for_ever(client)
        selector.register(client, event)
        if path == "smc-d":
            assert selector.select(0) == []
        child.kill()
        assert selector.select(GUARD)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_by(selector, client)


def test_a_selector_still_knows_of_a_kill_when_the_last_bytes_are_read(spawn: Spawn) -> None:
    """The death is told once, and the call that takes what is there does not look for it."""
    child, client = held(spawn, "smc-d", "last words")
    with client, connected() as (other, friend), selectors.DefaultSelector() as selector:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            send_for_ever(client)
        selector.register(client, selectors.EVENT_WRITE)
        assert selector.select(0) == []
        selector.register(other, selectors.EVENT_READ)
        child.kill()
        assert selector.select(GUARD), "the end of TCP or of the process is shown"
        selector.unregister(client)
        friend.sendall(b"x")
        assert selector.select(GUARD), "so the other end is shown too, which came before"
        selector.unregister(other)
        assert client.recv(100) == b"last words"
        for event in (selectors.EVENT_READ, selectors.EVENT_WRITE):
            selector.register(client, event)
            assert selector.select(GUARD)
            selector.unregister(client)
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_stopped_peer_is_waited_for(spawn: Spawn, path: str) -> None:
    child, client = held(spawn, path)
    with client:
        os.kill(child.pid, signal.SIGSTOP)
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)
        os.kill(child.pid, signal.SIGCONT)
        client.settimeout(GUARD)
        child.send("end")
        assert client.recv(1) == b""


def test_bytes_beside_the_ring_are_a_fault_of_the_peer() -> None:
    with connected(spin_us=0) as (client, server):
        assert isinstance(client, RingSocket)
        waiting = [Beside(server.recv, 1), Beside(server.sendall, bytes(100_000))]
        sleeps(server, "stalls_received")
        sleeps(server, "stalls_sent")
        client._tcp.send(b"against the rules")
        for one in waiting:
            with pytest.raises(smcfast.PeerMisbehaved):
                one.result()
        with pytest.raises(smcfast.PeerMisbehaved):
            server.sendall(b"x")


def send_by(selector: selectors.BaseSelector, sock: smcfast.SmcSocket) -> None:
    """Until it raises."""
    while True:
        try:
            sock.send(bytes(1000))
        except BlockingIOError:
            assert selector.select(GUARD)


def outcome(call: Callable[[], Any], path: str) -> str:
    """What a read finds when the peer's process has gone: a reset on a ring, an end or a reset on TCP."""
    try:
        assert call() == b""
    except ConnectionResetError:
        return "end"
    assert path == "tcp", "on a ring nobody takes a death for an end"
    return "end"


def test_nothing_is_left_of_many_connections() -> None:
    with connected() as (client, _):
        client.fileno()
    before = descriptors()
    for number in range(50):
        with connected(spin_us=0) as (client, server):
            if number % 2:
                client.fileno()
            client.sendall(b"x")
            assert server.recv(1) == b"x"
            server.settimeout(0.0)
            with pytest.raises(BlockingIOError):
                send_for_ever(server)
    after = descriptors()
    assert len(after) == len(before)


def test_a_socket_has_as_many_descriptors_as_the_page_of_limits_says() -> None:
    with connected() as (client, _):
        client.fileno()  # what the process opens once is there
    with serving() as listener:
        calling(listener).close()
        listener.accept()[0].close()
        before = len(descriptors())
        client = calling(listener)
        server, _ = listener.accept()
        assert len(descriptors()) - before == 2 * 5
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            send_for_ever(client)
        assert len(descriptors()) - before == 2 * 5 + 1
        client.fileno()
        assert len(descriptors()) - before == 2 * 5 + 3
        client.close()
        server.close()
        assert len(descriptors()) == before


def test_a_thread_in_accept_hears_of_a_close() -> None:
    listener = serving()
    waiting = Beside(listener.accept)
    listener.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        waiting.result()
    with pytest.raises(OSError, match="Bad file descriptor"):
        listener.accept()
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert other.fileno() >= 0
