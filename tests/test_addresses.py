"""Connecting: the same addresses in the same order, and the same errors, as asyncio."""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import addresses
from support.addresses import listening, refusing, silent
from support.process import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def info(family: int, host: str, port: int = 1) -> addresses.AddrInfo:
    return family, socket.SOCK_STREAM, 6, "", (host, port)


V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize("first", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("families", [[V6, V6, V6, V4, V4], [V4], [V4, V6, V4, V6], [V6, V6, V6]])
def test_interleaving_is_asyncios(families: list[int], first: int) -> None:
    from asyncio.base_events import _interleave_addrinfos  # type: ignore[attr-defined]

    infos = [info(family, str(number)) for number, family in enumerate(families)]
    assert addresses.interleaved(infos, first) == _interleave_addrinfos(infos, first)


async def outcome(connecting: Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> Any:
    """The error, or the peer's address."""
    try:
        _, writer = await connecting
    except ExceptionGroup as group:
        return group.message, [(type(error), error.errno) for error in group.exceptions if isinstance(error, OSError)]
    except (OSError, ValueError, TypeError, OverflowError) as error:
        # Versions of asyncio differ in whether the number is there twice.
        text = re.sub(r"\[errno \d+\] |^.*(?=\(\) got an unexpected)", "", str(error))
        return type(error), getattr(error, "errno", None), text
    writer.close()
    await writer.wait_closed()
    return writer.get_extra_info("peername")[:2]


CASES: list[dict[str, Any]] = [
    {},
    {"host": None, "port": None},
    {"host": "127.0.0.1", "port": 1, "server_hostname": "x"},
    {"host": "127.0.0.1", "port": 1, "ssl_handshake_timeout": 1.0},
    {"host": "127.0.0.1", "port": 1, "ssl_shutdown_timeout": 1.0},
    {"port": 1, "ssl": True},
    {"host": "::1", "port": 1, "family": V4},
    {"host": "name.invalid", "port": 1},
    {"host": "127.0.0.1", "port": 1, "local_addr": ("127.0.0.1", 0)},
    {"host": "127.0.0.1", "port": 1, "local_addr": ("192.0.2.1", 0)},
    {"host": "127.0.0.1", "port": 1, "local_addr": ("::1", 0)},
    {"host": "127.0.0.1", "port": "http"},
    {"host": "127.0.0.1", "port": "no-such-service"},
    {"host": "localhost", "port": 1, "happy_eyeballs_delay": 0.01},
    {"host": "127.0.0.1", "port": 70000},
    {"host": "127.0.0.1", "port": "70000"},
    {"host": "127.0.0.1", "port": " 1"},
    {"host": "127.0.0.1", "port": 1.0},
    {"host": "::1", "port": -1},
    {"host": "127.0.0.1", "port": 1, "local_addr": ("127.0.0.1", 70000)},
    {"host": "127.0.0.1", "port": 1, "limit": 0},
    {"host": "127.0.0.1", "port": 1, "all_errors": False},
    {"host": "localhost", "port": 1, "all_errors": True},
]
if sys.version_info < (3, 12):
    # asyncio has it from then on; not to ask for it is no error here.
    CASES.remove({"host": "127.0.0.1", "port": 1, "all_errors": False})


@pytest.mark.parametrize("arguments", CASES, ids=str)
def test_errors_are_asyncios(arguments: dict[str, Any]) -> None:
    """On asyncio's own loop: uvloop's words are its own, and ours are asyncio's on both."""
    theirs = asyncio.run(outcome(asyncio.open_connection(**arguments)))
    assert asyncio.run(outcome(smcfast.open_smc_connection(**arguments))) == theirs


async def test_a_refusal_names_the_address(host: str) -> None:
    with refusing(host) as port, pytest.raises(OSError, match=rf"{port}"):
        await smcfast.open_smc_connection(host, port)


@pytest.mark.parametrize("wrong", ["datagram", "both"])
async def test_a_wrong_socket(wrong: str) -> None:
    kind = socket.SOCK_DGRAM if wrong == "datagram" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as sock:
        target = {"host": "127.0.0.1", "port": 1} if wrong == "both" else {}
        with pytest.raises(ValueError, match=r"Stream Socket|at the same time"):
            await smcfast.open_smc_connection(sock=sock, **target)  # type: ignore[arg-type]


async def connected(
    infos: list[addresses.AddrInfo], delay: float | None, log: list[str] | None = None
) -> tuple[Any, ...]:
    """Where `connect` arrives; `log` gets what became of each prepared attempt."""
    attempts = [] if log is None else log

    class Prepared:
        def __init__(self, _sock: socket.socket, sockaddr: tuple[Any, ...]) -> None:
            self._name = sockaddr[0]
            attempts.append(f"+{self._name}")

        def close(self) -> None:
            attempts.append(f"-{self._name}")

    sock, sockaddr, _ = await addresses.connect(asyncio.get_running_loop(), infos, None, delay, Prepared)
    sock.close()
    return sockaddr


@pytest.mark.parametrize("delay", [None, 0.01, 100.0])
async def test_the_next_address_is_tried_when_one_refuses(delay: float | None) -> None:
    with listening("127.0.0.1") as (_, port), refusing("127.0.0.1") as closed:
        log: list[str] = []
        infos = [info(V4, "127.0.0.1", closed), info(V4, "127.0.0.1", port)]
        assert await connected(infos, delay, log) == ("127.0.0.1", port)
        assert log == ["+127.0.0.1", "-127.0.0.1", "+127.0.0.1"]


async def test_happy_eyeballs_do_not_wait_for_a_silent_address() -> None:
    """A full queue answers no SYN; the other address wins, and the loser leaves nothing behind."""
    with silent() as blocked, listening("127.0.0.1") as (_, port):
        before = descriptors()
        log: list[str] = []
        assert await connected([info(V4, *blocked), info(V4, "127.0.0.1", port)], 0.01, log) == ("127.0.0.1", port)
        assert log == [f"+{blocked[0]}", "+127.0.0.1", f"-{blocked[0]}"]
        assert len(asyncio.all_tasks()) == 1 + 1  # this test and its guard
        assert descriptors() == before


async def test_two_winners_at_once_leave_one() -> None:
    """Two attempts succeed in one turn of the loop: the second one is closed, and not lost."""
    both_there = asyncio.Event()
    closed: list[str] = []

    class Extra:
        def close(self) -> None:
            closed.append("extra")

    async def attempt(name: str) -> tuple[socket.socket, tuple[Any, ...], Extra]:
        if name == "second":
            both_there.set()
        await both_there.wait()
        return socket.socket(), (name,), Extra()

    before = descriptors()
    attempts = [functools.partial(attempt, "first"), functools.partial(attempt, "second")]
    winner = await addresses._race(asyncio.get_running_loop(), attempts, 0.001)
    assert winner is not None
    winner[0].close()
    assert closed == ["extra"]
    assert descriptors() == before


async def test_a_cancelled_race_leaves_nothing() -> None:
    with silent() as one, silent() as two:
        before = descriptors()
        log: list[str] = []
        racing = asyncio.create_task(connected([info(V4, *one), info(V4, *two)], 0.01, log))
        while len(log) < 2:  # noqa: ASYNC110 - what is waited for happens in the tested code
            await asyncio.sleep(0.001)
        racing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await racing
        assert sorted(log) == sorted([f"+{one[0]}", f"+{two[0]}", f"-{one[0]}", f"-{two[0]}"])
        assert len(asyncio.all_tasks()) == 1 + 1
        assert descriptors() == before


async def test_a_bug_in_an_attempt_is_not_swallowed() -> None:
    def fail(_sock: socket.socket, _sockaddr: tuple[Any, ...]) -> Any:
        raise ZeroDivisionError

    for delay in (None, 0.01):
        before = descriptors()
        with pytest.raises(ZeroDivisionError):
            await addresses.connect(asyncio.get_running_loop(), [info(V4, "127.0.0.1")], None, delay, fail)
        assert descriptors() == before


@pytest.mark.parametrize("loop_method", ["open_connection", "open_smc_connection"])
async def test_local_addr(host: str, loop_method: str) -> None:
    connect: Callable[..., Any] = getattr(asyncio, loop_method, None) or getattr(smcfast, loop_method)
    with listening(host) as (listeners, port):
        listeners[0].setblocking(False)
        local = (listeners[0].getsockname()[0], 0)
        _, writer = await connect(host, port, local_addr=local)
        conn, peer = await asyncio.get_running_loop().sock_accept(listeners[0])
        assert peer[:2] == writer.get_extra_info("sockname")[:2]
        conn.close()
        writer.close()
        await writer.wait_closed()


class Carried:
    """What an attempt carries."""

    def __init__(self) -> None:
        self.made: list[tuple[str, socket.socket]] = []
        self.closed = 0
        self.asked = asyncio.Event()

    def close(self) -> None:
        self.closed += 1

    def first(self, sock: socket.socket, _: tuple[Any, ...]) -> Carried:
        self.made.append(("first", sock))
        return self

    def second(self, sock: socket.socket, _: tuple[Any, ...]) -> Carried:
        self.made.append(("second", sock))
        self.asked.set()
        return self

    def beside(self, carried: Carried) -> addresses.Prepare[Carried]:
        assert carried is self
        return self.second

    def nothing_beside(self, carried: Carried) -> None:
        assert carried is self
        self.asked.set()


async def attempt(
    carried: Carried, target: tuple[str, int], beside: Any, local: tuple[str, int] | None = None
) -> addresses._Connection[Carried]:
    def place(address: tuple[str, int]) -> list[addresses.AddrInfo]:
        return [(V4, socket.SOCK_STREAM, 6, "", address)]

    loop = asyncio.get_running_loop()
    local_infos = None if local is None else place(local)
    return await addresses.connect(
        loop, place(target), local_infos, None, carried.first, all_errors=True, beside=beside, patience=0.01
    )


async def test_no_attempt_beside_one_that_fails() -> None:
    carried = Carried()
    with refusing("127.0.0.1") as port:
        with pytest.raises(ExceptionGroup) as caught:
            await attempt(carried, ("127.0.0.1", port), carried.beside)
    assert [type(error) for error in caught.value.exceptions] == [ConnectionRefusedError]
    assert ([name for name, _ in carried.made], carried.closed) == (["first"], 1)


@pytest.mark.parametrize("more", [True, False])
async def test_attempts_that_take_their_time(more: bool) -> None:
    """Another one if it is wanted; a cancel ends both, and nothing is left open."""
    carried = Carried()
    with silent() as target:
        attempting = asyncio.create_task(attempt(carried, target, carried.beside if more else carried.nothing_beside))
        await carried.asked.wait()
        attempting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempting
    assert [name for name, _ in carried.made] == (["first", "second"] if more else ["first"])
    assert carried.closed == len(carried.made)
    assert all(sock.fileno() == -1 for _, sock in carried.made)


async def test_an_attempt_in_the_place_of_another() -> None:
    """Where the local port is given, both cannot have it."""
    carried = Carried()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        local = probe.getsockname()
    with silent() as target:
        attempting = asyncio.create_task(attempt(carried, target, carried.beside, local))
        await carried.asked.wait()
        (_, first), (_, second) = carried.made
        assert (first.fileno(), second.getsockname()) == (-1, local)
        attempting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempting
    assert carried.closed == 2
