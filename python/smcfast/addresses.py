"""From host and port to a connected TCP socket: getaddrinfo, interleaving and happy eyeballs as asyncio has them.

asyncio does this inside ``create_connection``, which gives no chance to look between the making of a socket and its
connect; the rendezvous needs exactly that moment.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import os
import select
import socket
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

AddrInfo: TypeAlias = tuple[int, int, int, str, tuple[Any, ...]]


class Closable(Protocol):
    """Something that holds a resource for one connect attempt."""

    def close(self) -> None:
        """Give it up."""


_T = TypeVar("_T")
ExtraT = TypeVar("ExtraT", bound=Closable)
"""What a connect attempt carries with it."""
Prepare: TypeAlias = "Callable[[socket.socket, tuple[Any, ...]], ExtraT]"
"""Makes it for a socket and the address that it is about to be connected to."""
Beside: TypeAlias = "Callable[[ExtraT], Prepare[ExtraT] | None]"
"""From what an attempt carries to what another one to the same address would carry; None for no other one."""
_Connection: TypeAlias = "tuple[socket.socket, tuple[Any, ...], ExtraT]"


async def resolve(
    loop: asyncio.AbstractEventLoop, host: str | None, port: int | str | None, family: int, proto: int, flags: int
) -> list[AddrInfo]:
    """The stream addresses of `host` and `port`, numeric ones without a thread.

    :raises OSError: the name is unknown (`socket.gaierror`) or has no address.
    """
    infos = _numeric(host, _number(port), family, proto)
    if infos is None:
        infos = list(
            await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, proto=proto, flags=flags)
        )
    if not infos:
        raise OSError("getaddrinfo() returned empty list")
    return infos


def _number(port: int | str | None) -> int | str | None:
    """A port that is a number in letters, as a number: getaddrinfo would take it modulo 65536."""
    try:
        return port if port is None else int(port)
    except ValueError:
        return port


def _numeric(host: str | None, port: int | str | None, family: int, proto: int) -> list[AddrInfo] | None:
    """The one address that needs no resolver, None when there may be more to it (names, zones, named ports)."""
    if not isinstance(host, str) or not isinstance(port, int) or not host or "%" in host:
        return None
    for candidate in (socket.AF_INET, socket.AF_INET6):
        if family not in (socket.AF_UNSPEC, candidate):
            continue
        try:
            socket.inet_pton(candidate, host)
        except OSError:
            continue
        sockaddr = (host, port) if candidate == socket.AF_INET else (host, port, 0, 0)
        return [(candidate, socket.SOCK_STREAM, proto or socket.IPPROTO_TCP, "", sockaddr)]
    return None


def interleaved(infos: Sequence[AddrInfo], first: int) -> list[AddrInfo]:
    """`infos` with the address families taking turns, after `first` ones of the first family."""
    by_family: OrderedDict[int, list[AddrInfo]] = OrderedDict()
    for info in infos:
        by_family.setdefault(info[0], []).append(info)
    families = list(by_family.values())
    head = families[0][: max(first - 1, 0)]
    families[0] = families[0][len(head) :]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*families))
    return head + [info for info in turns if info is not None]


async def connect(
    loop: asyncio.AbstractEventLoop,
    infos: Sequence[AddrInfo],
    local_infos: Sequence[AddrInfo] | None,
    delay: float | None,
    prepare: Prepare[ExtraT],
    *,
    all_errors: bool = False,
    beside: Beside[ExtraT] | None = None,
    patience: float = 0.0,
) -> _Connection[ExtraT]:
    """The first of `infos` that can be connected: its socket, its address and what `prepare` made for it.

    :param delay: seconds after which the next address is tried beside the present one; None tries one at a time.
    :param prepare: called for each socket right before its connect; what it returns is closed if that fails.
    :param beside: an attempt that takes longer than `patience` seconds gets another one beside it, made by what this
        returns. Where the local port is given, the other one takes its place.
    :raises OSError: no address could be connected; several different failures are one error with all their texts.
    :raises ExceptionGroup: the same with `all_errors`: each failure.
    """
    failures: list[OSError] = []
    attempts: list[Callable[[], Coroutine[Any, Any, _Connection[ExtraT]]]]
    if beside is None:
        attempts = [functools.partial(_attempt, loop, failures, info, local_infos, prepare) for info in infos]
    else:
        waits = (beside, patience)
        attempts = [functools.partial(_patient, loop, failures, info, local_infos, prepare, *waits) for info in infos]
    winner = await (_one_by_one(attempts) if delay is None else _race(loop, attempts, delay))
    if winner is not None:
        return winner
    try:
        raise ExceptionGroup("create_connection failed", failures) if all_errors else _combined(failures)
    finally:
        failures.clear()  # An exception's frame would keep itself alive through this list.


async def _one_by_one(attempts: Iterable[Callable[[], Coroutine[Any, Any, _T]]]) -> _T | None:
    for attempt in attempts:
        try:
            return await attempt()
        except OSError:
            continue
    return None


async def _race(
    loop: asyncio.AbstractEventLoop,
    attempts: Iterable[Callable[[], Coroutine[Any, Any, tuple[socket.socket, tuple[Any, ...], ExtraT]]]],
    delay: float,
) -> tuple[socket.socket, tuple[Any, ...], ExtraT] | None:
    """The first success; a new attempt joins when `delay` seconds have passed or one has failed.

    Losers are cancelled and waited for, and one that wins too late is closed: asyncio's own staggered race can lose a
    connected socket there.
    """
    waiting = list(reversed(list(attempts)))
    running: set[asyncio.Task[tuple[socket.socket, tuple[Any, ...], ExtraT]]] = set()
    try:
        while waiting or running:
            if waiting:
                running.add(loop.create_task(waiting.pop()()))
            done, running = await asyncio.wait(
                running, timeout=delay if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            winners = [task.result() for task in done if _succeeded(task)]
            for loser in winners[1:]:
                _drop(loser)
            if winners:
                return winners[0]
        return None
    finally:
        await _abandon(running)


async def _abandon(running: set[asyncio.Task[_Connection[ExtraT]]]) -> None:
    """End attempts that nobody needs any more, and wait for that."""
    for task in running:
        task.cancel()
        task.add_done_callback(lambda task: _drop(task.result()) if _succeeded(task) else None)
    if running:
        await asyncio.wait(running)


async def _patient(
    loop: asyncio.AbstractEventLoop,
    failures: list[OSError],
    info: AddrInfo,
    local_infos: Sequence[AddrInfo] | None,
    prepare: Prepare[ExtraT],
    beside: Beside[ExtraT],
    patience: float,
) -> _Connection[ExtraT]:
    """An attempt, and another one beside it if it takes its time: the first success, or the first failure of theirs."""
    carried: list[ExtraT] = []
    own_failures: list[OSError] = []

    def noting(sock: socket.socket, sockaddr: tuple[Any, ...]) -> ExtraT:
        carried.append(prepare(sock, sockaddr))
        return carried[-1]

    running = {loop.create_task(_attempt(loop, own_failures, info, local_infos, noting))}
    try:
        done, running = await asyncio.wait(running, timeout=patience)
        other = beside(carried[-1]) if running and carried else None
        if other is not None:
            if any(local[4][1] for local in local_infos or ()):
                await _abandon(running)
                running = set()
            running.add(loop.create_task(_attempt(loop, own_failures, info, local_infos, other)))
        while True:
            winners = [task.result() for task in done if _succeeded(task)]
            for loser in winners[1:]:
                _drop(loser)
            if winners:
                return winners[0]
            if not running:
                failures.append(own_failures[0])
                raise own_failures[0]
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    finally:
        own_failures.clear()
        await _abandon(running)


def _succeeded(task: asyncio.Task[Any]) -> bool:
    """Has the finished `task` a result? A failure that is no OSError is a bug and is raised.

    :raises Exception: that failure.
    """
    if task.cancelled():
        return False
    error = task.exception()
    if error is not None and not isinstance(error, OSError):
        raise error
    return error is None


def _drop(connection: _Connection[Closable]) -> None:
    sock, _, extra = connection
    extra.close()
    sock.close()


def _combined(failures: Sequence[OSError]) -> OSError:
    texts = {str(failure) for failure in failures}
    if len(texts) == 1:
        return failures[0]
    return OSError("Multiple exceptions: " + ", ".join(str(failure) for failure in failures))


async def _attempt(
    loop: asyncio.AbstractEventLoop,
    failures: list[OSError],
    info: AddrInfo,
    local_infos: Sequence[AddrInfo] | None,
    prepare: Prepare[ExtraT],
) -> _Connection[ExtraT]:
    family, kind, proto, _, sockaddr = info
    sock: socket.socket | None = None
    extra: ExtraT | None = None
    try:
        sock = socket.socket(family, kind, proto)
        sock.setblocking(False)
        if local_infos is not None:
            _bind(sock, family, local_infos)
        extra = prepare(sock, sockaddr)
        await _establish(loop, sock, sockaddr)
    except BaseException as error:
        if extra is not None:
            extra.close()
        if sock is not None:
            sock.close()
        if isinstance(error, OSError):
            failures.append(error)
        raise
    return sock, sockaddr, extra


async def _establish(loop: asyncio.AbstractEventLoop, sock: socket.socket, sockaddr: tuple[Any, ...]) -> None:
    """``loop.sock_connect`` for a numeric address: uvloop's would ask the resolver, in a thread, what that is."""
    try:
        error = sock.connect_ex(sockaddr)
    except OverflowError:  # no port: asyncio's words for it are those of the plain call
        sock.connect(sockaddr)
        raise
    if error in (errno.EINPROGRESS, errno.EINTR):
        # On this host it is done by now, and then the loop need not be asked.
        if not _is_writable(sock):
            await _writable(loop, sock)
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, f"Connect call failed {sockaddr}")


def _is_writable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    return bool(poll.poll(0))


async def _writable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    waiter: asyncio.Future[None] = loop.create_future()
    fd, pid = sock.fileno(), os.getpid()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    loop.add_writer(fd, wake)
    try:
        await waiter
    finally:
        if os.getpid() == pid:  # a forked child that drops this wait shares the loop's epoll set with its parent
            loop.remove_writer(fd)


def _bind(sock: socket.socket, family: int, local_infos: Iterable[AddrInfo]) -> None:
    """Bind to the first local address of the family that can be had."""
    refusals = []
    for local_family, _, _, _, local_address in local_infos:
        if local_family != family:
            continue
        try:
            sock.bind(local_address)
            return
        except OSError as error:
            text = f"error while attempting to bind on address {local_address!r}: {str(error).lower()}"
            refusals.append(OSError(error.errno, text))
    raise refusals[-1] if refusals else OSError(f"no matching local address with family={family!r} found")
