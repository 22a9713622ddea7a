"""The descriptors of blocking sockets: what selectors see is what a call would find, and nothing spins."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import selectors
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from support.sockets import GUARD, PATHS, Beside, calling, connected, received, serving, sleeps

if TYPE_CHECKING:
    from collections.abc import Callable

    from smcfast import SmcSocket

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
MOMENT = 0.05
"""Seconds for which nothing must be seen."""
KINDS = [selectors.SelectSelector, selectors.PollSelector, selectors.EpollSelector]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


def seen(kind: Callable[[], selectors.BaseSelector], sock: SmcSocket, events: int, timeout: float = GUARD) -> int:
    """What the selector reports of `sock`."""
    with kind() as selector:
        selector.register(sock, events)
        found = selector.select(timeout)
    return found[0][1] if found else 0


@pytest.mark.parametrize("kind", KINDS)
def test_readable_while_there_are_bytes(kind: Callable[[], selectors.BaseSelector], path: str) -> None:
    with connected(path=path) as (client, server):
        for _ in range(3):
            assert seen(kind, server, READ, 0) == 0
            client.sendall(b"ab")
            assert seen(kind, server, READ) == READ
            assert seen(kind, server, READ) == READ
            assert server.recv(1) == b"a"
            assert seen(kind, server, READ) == READ
            assert server.recv(9) == b"b"
            assert seen(kind, server, READ, 0) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_writable_while_there_is_room(kind: Callable[[], selectors.BaseSelector], path: str) -> None:
    with connected(path=path) as (client, server):
        assert seen(kind, client, READ | WRITE) == WRITE
        client.setblocking(False)
        fill(client)
        assert seen(kind, client, READ | WRITE, MOMENT) == 0
        server.settimeout(0.0)
        waiting = Beside(seen, kind, client, READ | WRITE)
        Beside(drain, server).result()
        assert waiting.result() == WRITE
        assert client.send(b"x") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_is_readable(kind: Callable[[], selectors.BaseSelector], path: str) -> None:
    with connected(path=path) as (client, server):
        waiting = Beside(seen, kind, server, READ)
        client.shutdown(socket.SHUT_WR)
        assert waiting.result() == READ
        assert server.recv(1) == b""
        assert seen(kind, server, READ) == READ, "it stays the end"
        waiting = Beside(seen, kind, client, READ)
        server.close()
        assert waiting.result() == READ
        assert client.recv(1) == b""


def test_the_own_end_of_reading_is_readable(path: str) -> None:
    with connected(path=path) as (_, server):
        assert seen(selectors.PollSelector, server, READ, 0) == 0
        server.shutdown(socket.SHUT_RD)
        assert seen(selectors.PollSelector, server, READ) == READ
        assert server.recv(1) == b""
    with connected(path=path) as (_, server):
        server.shutdown(socket.SHUT_RD)
        assert seen(selectors.PollSelector, server, READ) == READ, "before the first use of its descriptor"


def test_one_who_waits_in_a_selector_takes_no_cpu(path: str) -> None:
    """Neither this thread nor the one behind the descriptors; and nothing is reported."""
    with connected(path=path) as (client, server):
        for sock in (client, server):
            assert seen(selectors.PollSelector, sock, READ, 0) == 0
        client.sendall(b"x")
        assert received(server, 1) == b"x"
        before = resource.getrusage(resource.RUSAGE_SELF)
        with selectors.DefaultSelector() as selector:
            for sock in (client, server):
                selector.register(sock, READ)
            assert selector.select(0.5) == []
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert after.ru_nvcsw - before.ru_nvcsw < 50, "a wait that spins goes to sleep again and again, or never"
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.4


def test_many_rounds_by_a_selector_lose_no_wake_up(path: str) -> None:
    """Both ends in threads of their own, which wait in selectors alone."""
    rounds = 2000
    with connected(path=path) as (client, server):
        ends = [Beside(play, client, rounds, True), Beside(play, server, rounds, False)]
        assert [end.result() for end in ends] == [rounds, rounds]


def test_a_stream_by_selectors_alone(path: str) -> None:
    """Writable and readable are waited for; pieces that never fit into the ring."""
    data = os.urandom(1_000_003)
    with connected(path=path) as (client, server):
        writer = Beside(write_all, client, data)
        got = bytearray()
        server.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(server, READ)
            while len(got) < len(data):
                assert selector.select(GUARD)
                try:
                    got += server.recv(70_000)
                except BlockingIOError:
                    continue
        writer.result()
        assert got == data


def test_a_thread_that_sleeps_in_a_call_beside_a_selector() -> None:
    """What a call of another thread finds in passing is still told to who sleeps."""
    with connected(spin_us=0) as (client, server):
        assert seen(selectors.PollSelector, server, READ, 0) == 0
        for number in range(300):
            sleeper = Beside(server.recv, 1)
            sleeps(server, "stalls_received", 2 * number + 1)
            senders = [Beside(server.sendall, b"a"), Beside(client.sendall, b"b")]
            assert sleeper.result() == b"b"
            assert client.recv(1) == b"a"
            for sender in senders:
                sender.result()
        assert seen(selectors.PollSelector, server, READ, 0) == 0


def test_two_selectors_and_epoll_by_edges(path: str) -> None:
    with connected(path=path) as (client, server):
        server.setblocking(False)
        edges = select.epoll()
        edges.register(server, select.EPOLLIN | select.EPOLLET)
        for _ in range(3):
            client.sendall(b"x")
            assert edges.poll(GUARD)
            assert seen(selectors.EpollSelector, server, READ) == READ
            assert received(server, 1) == b"x"
            with pytest.raises(BlockingIOError):
                server.recv(1)
        edges.close()


def test_there_is_one_thread_for_all_of_them() -> None:
    with connected() as (client, server):
        numbers = {client.fileno(), server.fileno(), client.fileno()}
        assert len(numbers) == 2
        names = [name for task in os.listdir("/proc/self/task") if (name := name_of(task)) == "smcfast-lamps"]
        assert len(names) == 1
    assert client.fileno() == -1


async def test_an_event_loop_watches_them(path: str) -> None:
    with connected(path=path) as (client, server):
        loop = asyncio.get_running_loop()
        came = loop.create_future()
        loop.add_reader(server.fileno(), lambda: came.done() or came.set_result(server.recv(10)))
        await loop.run_in_executor(None, client.sendall, b"hello")
        assert await came == b"hello"
        loop.remove_reader(server.fileno())


def test_a_listener_is_readable_while_somebody_waits(path: str) -> None:
    with serving(path=path) as listener, selectors.DefaultSelector() as selector:
        selector.register(listener, READ)
        assert selector.select(0) == []
        clients = [calling(listener, path=path) for _ in range(2)]
        for _ in clients:
            assert selector.select(GUARD)
            server, _ = listener.accept()
            server.close()
        assert selector.select(0) == []
        for client in clients:
            client.close()
        number = listener.fileno()
        selector.unregister(listener)
    assert number >= 0
    assert listener.fileno() == -1


def fill(sock: SmcSocket) -> None:
    """Send until there is no room, and none comes: TCP takes some time for that."""
    quiet = 0
    while quiet < 5:
        try:
            sock.send(bytes(50_000))
            quiet = 0
        except BlockingIOError:
            quiet += 1
            threading.Event().wait(MOMENT / 5)


def drain(sock: SmcSocket) -> None:
    """Read until nothing is there."""
    while True:
        try:
            sock.recv(100_000)
        except BlockingIOError:
            return


def play(sock: SmcSocket, rounds: int, begins: bool) -> int:
    sock.setblocking(False)
    count = 0
    with selectors.DefaultSelector() as selector:
        selector.register(sock, READ)
        if begins:
            sock.send(b"x")
        while count < rounds:
            assert selector.select(GUARD), "no wake-up came"
            try:
                assert sock.recv(1) == b"x"
            except BlockingIOError:
                continue
            count += 1
            if not begins or count < rounds:
                sock.send(b"x")
    return count


def write_all(sock: SmcSocket, data: bytes) -> None:
    sock.setblocking(False)
    rest = memoryview(data)
    with selectors.DefaultSelector() as selector:
        selector.register(sock, WRITE)
        while rest:
            assert selector.select(GUARD), "no room came"
            try:
                rest = rest[sock.send(rest) :]
            except BlockingIOError:
                continue


def name_of(task: str) -> str:
    try:
        with open(f"/proc/self/task/{task}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""
