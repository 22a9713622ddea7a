"""A listener's name lives as long as one of the workers that share the listener."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

from smcfast import acceptor, netlink, registration, rendezvous
from smcfast.registration import Registration
from support.process import abstract_names, no_more_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def announced(listener: socket.socket) -> bool:
    return rendezvous.exists(rendezvous.listener_name(netlink.cookie(listener)))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - no event tells of a name that comes or goes
        await asyncio.sleep(0.001)


async def test_a_name_comes_and_goes(listener: socket.socket) -> None:
    assert not announced(listener)
    registration = Registration(asyncio.get_running_loop(), listener)
    assert announced(listener)
    assert registration.holds
    registration.close()
    assert abstract_names() == set()


async def test_the_next_one_takes_over(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    registrations = [Registration(loop, listener) for _ in range(4)]
    assert [each.holds for each in registrations] == [True, False, False, False]
    while registrations:
        holder = next(each for each in registrations if each.holds)
        registrations.remove(holder)
        holder.close()
        if registrations:
            await until(lambda: sum(each.holds for each in registrations) == 1)
            assert announced(listener)
    assert abstract_names() == set()


async def test_one_that_waits_may_go(listener: socket.socket) -> None:
    """The holder takes in and lets go: what it holds is bounded by who is there, not by who ever came."""
    loop = asyncio.get_running_loop()
    holder = Registration(loop, listener)
    for _ in range(50):
        Registration(loop, listener).close()
        await asyncio.sleep(0)
    last = Registration(loop, listener)
    await until(lambda: len(holder._waiting) == 1)
    holder.close()
    await until(lambda: last.holds)
    last.close()


async def test_a_stranger_may_have_made_the_name(listener: socket.socket) -> None:
    """Only the existence counts, so nobody can take it away by holding it."""
    with rendezvous.claim(rendezvous.listener_name(netlink.cookie(listener))):
        registration = Registration(asyncio.get_running_loop(), listener)
        assert announced(listener)
        registration.close()


def forked_worker(listener: socket.socket, ready: int, number: int) -> None:
    """A worker process that serves an inherited listener until it is killed: writes its number once it is there, and
    again when it holds the name."""

    async def serve() -> None:
        registration = Registration(asyncio.get_running_loop(), listener)
        os.write(ready, bytes([number]))
        await until(lambda: registration.holds)
        os.write(ready, bytes([number]))
        await asyncio.Event().wait()

    asyncio.run(serve())


def test_forked_workers(listener: socket.socket) -> None:
    """Whoever holds the name is killed, and the name stays with the survivors."""
    ours, theirs = os.pipe()
    workers: dict[int, int] = {}
    holder = 0

    def heard() -> int:
        assert select.select([ours], [], [], 30)[0], "no worker says anything"
        return os.read(ours, 1)[0]

    try:
        for number in range(4):
            pid = os.fork()
            if pid == 0:
                try:
                    forked_worker(listener, theirs, number)
                finally:
                    os._exit(1)
            workers[number] = pid
            assert heard() == number
            if number == 0:
                holder = heard()
                assert holder == 0
        while True:
            assert announced(listener)
            pid = workers.pop(holder)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if not workers:
                break
            holder = heard()
        assert not announced(listener)
    finally:
        for pid in workers.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)


def test_nothing_is_announced_without_descriptors(
    run: Callable[..., Any], listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    async def register() -> None:
        loop = asyncio.get_running_loop()
        with no_more_descriptors():
            registration = Registration(loop, listener)
        assert not registration.holds
        registration.close()

    run(register)
    assert "its clients use TCP" in caplog.text


async def test_a_holder_without_descriptors_rests(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker at its door stays there, and must not keep the loop busy until there is a descriptor for it."""
    monkeypatch.setattr(acceptor, "RETRY_DELAY", 0.05)
    loop = asyncio.get_running_loop()
    caught: list[str] = []
    loop.set_exception_handler(lambda _, context: caught.append(context["message"]))
    holder = Registration(loop, listener)
    follower = rendezvous.call(rendezvous.holder_name(netlink.cookie(listener)))
    with no_more_descriptors():
        await until(lambda: bool(caught))
        assert not loop.remove_reader(holder._owned[0].fileno())
    assert set(caught) == {"socket.accept() out of system resource"}
    await until(lambda: len(holder._waiting) == 1)
    holder.close()
    follower.close()


async def test_a_name_whose_holder_never_listens(
    listener: socket.socket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has bound the holder's name and does no more: the worker does without it, and says so."""
    monkeypatch.setattr(registration, "RETRIES_MAX", 3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.bind(rendezvous.holder_name(netlink.cookie(listener)))
        worker = Registration(asyncio.get_running_loop(), listener)
        assert not announced(listener)
        await until(lambda: announced(listener))
        assert "does not listen" in caplog.text
        assert not worker.holds
        worker.close()
    assert abstract_names() == set()


def squat(parent: Channel, name: str, uid: int, backlog: int) -> None:
    """Child of another user: have the holder's name until the test has seen enough."""
    os.setgroups([])
    os.setuid(uid)
    with rendezvous.listen(bytes.fromhex(name), backlog):
        parent.send("here")
        assert parent.receive() == "enough"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")
@pytest.mark.parametrize("full", [False, True])
async def test_a_holder_who_is_no_sibling(
    listener: socket.socket, caplog: pytest.LogCaptureFixture, spawn: Spawn, full: bool
) -> None:
    """Another user's process cannot keep the clients away by waiting where siblings are expected."""
    name = rendezvous.holder_name(netlink.cookie(listener))
    child = spawn(squat, name.hex(), 65534, 0 if full else 8)
    assert await child.areceive() == "here"
    with contextlib.ExitStack() as stack:
        if full:
            stack.enter_context(contextlib.closing(rendezvous.call(name)))
        worker = stack.enter_context(contextlib.closing(Registration(asyncio.get_running_loop(), listener)))
        assert announced(listener)
        assert ("too many" if full else "user 65534") in caplog.text
        if not full:
            allowing = Registration(asyncio.get_running_loop(), listener, {65534})
            assert allowing._ahead is not None
            allowing.close()
        assert not worker.holds
    child.send("enough")
    await child.aresult()
    assert abstract_names() == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")
async def test_a_stranger_who_has_both_names_and_frees_one(
    listener: socket.socket, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What he announced in our place, we announce as soon as he does not."""
    monkeypatch.setattr(registration, "PATROL", 0.01)
    cookie = netlink.cookie(listener)
    child = spawn(squat, rendezvous.holder_name(cookie).hex(), 65534, 8)
    assert await child.areceive() == "here"
    with rendezvous.claim(rendezvous.listener_name(cookie)):
        worker = Registration(asyncio.get_running_loop(), listener)
        assert worker._owned == []
        await asyncio.sleep(0.05)  # he may keep it for as long as he likes
        assert announced(listener)
    await until(lambda: announced(listener))
    worker.close()
    assert not announced(listener)
    child.send("enough")
    await child.aresult()
