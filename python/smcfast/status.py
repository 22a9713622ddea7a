"""Looks at the status pages of running smcfast processes, from outside.

A process has a name in ``/proc/net/unix`` as long as it lives, and hands out its page there. One that is busy or stopped
does not answer; then its page is looked for in ``/proc/PID/fd``. Pages are read as if they came from a peer.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from smcfast import _native, counts, page, reasons, rendezvous

if _native.AVAILABLE:
    from smcfast import _core

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator

    from smcfast.counts import Stats
    from smcfast.errors import Fallback

WAIT: Final = 0.25
"""Seconds that processes have to answer, all of them together."""
_NAMES = "/proc/net/unix"
_FILE = "/memfd:smcfast-status"


class StatusError(ValueError):
    """A page that cannot be read: the message says what is wrong with it."""


@dataclass(frozen=True)
class Listener:
    """A listening socket that a server of smcfast serves."""

    local: tuple[str, int] | None
    """Host and port; None for a family that has none."""
    path: str
    """The best path that it offers."""
    opened_us: int
    """Microseconds since 1970."""


@dataclass(frozen=True)
class Connection:
    """One end of a connection, as its process last knew it. Only those on rings have sizes and counters."""

    role: str
    """ "client" or "server"."""
    path: str
    """As `SmcInfo.path`."""
    state: str
    """The state by its name in the kernel's tools: "ACTIVE", "APPCLOSEWAIT1", "CLOSED"..."""
    local: tuple[str, int] | None
    remote: tuple[str, int] | None
    fallback: Fallback | None
    """Why it is TCP."""
    link_group: int | None
    engine: str | None
    """The peer's engine, hexadecimal."""
    own_size: int
    """Bytes of the own ring."""
    peer_size: int
    """Bytes of the peer's ring."""
    sent: int
    """Bytes put into the peer's ring."""
    acknowledged: int
    """Those of them that the peer has told to have read."""
    received: int
    """Bytes that have come into the own ring."""
    read: int
    """Those of them that were read."""
    backlog: int
    """Bytes that wait for room in the peer's ring."""
    writes: int
    reads: int
    wakeups_sent: int
    """Times that the peer was rung."""
    wakeups_received: int
    """Waits that the doorbell ended."""
    spins: int
    """Waits that spinning ended."""
    stalls_sent: int
    """Waits for room that went to sleep."""
    stalls_received: int
    """Waits for data that went to sleep."""
    opened_us: int
    """Microseconds since 1970."""


@dataclass(frozen=True)
class Page:
    """What a process shows."""

    id: int
    """The number in its name; 0 without one."""
    pid: int
    """The process as it sees itself, in its own pid namespace."""
    package: str
    """The version of smcfast."""
    begun_us: int
    """When the page was made: microseconds since 1970."""
    connections: tuple[Connection, ...]
    listeners: tuple[Listener, ...]
    hidden: int
    """Connections and listeners beyond those that the page has room for."""
    unsettled: int
    """Rows that were being changed all the time; a process that was stopped in the middle of it may have one."""
    stats: Stats
    """As `smcfast.stats` in the process, but `totals` are of ended connections alone: those of open ones are in them."""


@dataclass(frozen=True)
class Process:
    """A process that uses smcfast."""

    pid: int
    """As seen from here; 0 if it cannot be seen."""
    uid: int
    program: str
    """Its command line; empty if it cannot be read."""
    busy: bool
    """It does not answer."""
    page: Page | None
    """None if it is busy and keeps others from its /proc, or its page cannot be read."""
    error: str | None = None
    """Why the page cannot be read."""


def processes(wait: float = WAIT) -> list[Process]:
    """All processes with a page: root's of all users, anybody else's own.

    :param wait: seconds that they have to answer, all of them together.
    :raises OSError: no descriptors are left, or there is no /proc.
    """
    with contextlib.ExitStack() as stack:
        calls = [stack.enter_context(call) for call in _calls()]
        _listen(calls, time.monotonic() + wait)
        found = [process for call in calls if (process := call.process()) is not None]
    return sorted(found, key=lambda process: process.pid)


def read(pid: int, wait: float = WAIT) -> Page:
    """The page of the process `pid`.

    :raises ProcessLookupError: there is none, or it has no page that this user may read.
    :raises StatusError: the page is of another version, or spoiled; or the process is busy and keeps others from its /proc.
    """
    for process in processes(wait):
        if process.pid == pid:
            if process.page is None:
                raise StatusError(process.error or f"process {pid} is busy, and its page is not to be had")
            return process.page
    raise ProcessLookupError(f"no process {pid} with a status page")


def page_in(fd: int) -> Page:
    """The page in the file behind `fd`, which is taken over.

    :raises StatusError: there is none of this version, or it breaks the rules.
    """
    try:
        return _page(_core.read_status(fd))
    except ValueError as error:
        raise StatusError(str(error)) from None


class _Call:
    """A question to one process."""

    def __init__(self, number: int, conn: socket.socket | None) -> None:
        """:param conn: None for a process with which so many wait already that nobody else may."""
        self.number = number
        self.conn = conn
        self.answer: tuple[bytes, list[int]] | None = None
        self.pid, self.uid = (0, os.geteuid()) if conn is None else rendezvous.credentials(conn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.conn is not None:
            self.conn.close()
        if self.answer is not None:
            rendezvous.close_fds(self.answer[1])

    def take(self) -> bool:
        """Take the answer, if it is there."""
        assert self.conn is not None
        self.answer = rendezvous.take_frame(self.conn)
        return self.answer is not None

    def process(self) -> Process | None:
        """What came of it; None for a process that is dead."""
        own = page.page() if self.pid == os.getpid() else None
        if own is not None and (mine := _page(own.read())).id == self.number:
            return Process(self.pid, self.uid, _program(self.pid), False, mine)
        if self.answer is not None and self.answer[0] == page.GREETING and len(self.answer[1]) == 1:
            return self._process(False, [self.answer[1].pop()])
        pid = self.pid or _owner(self.number)
        if not pid or not os.path.exists(f"/proc/{pid}"):
            return None
        self.pid = pid
        return self._process(True, _files(pid))

    def _process(self, busy: bool, files: Iterable[int]) -> Process:
        found, error = None, None
        for fd in files:
            try:
                candidate = page_in(fd)
            except StatusError as why:
                error = str(why)
                continue
            if candidate.id == self.number:
                found, error = candidate, None
                break
            error = "status page: id: is not that of its name"
        return Process(self.pid, self.uid, _program(self.pid), busy, found, error)


def _calls() -> Iterator[_Call]:
    for number in sorted(_numbers()):
        try:
            conn = rendezvous.call(rendezvous.status_name(number))
        except BlockingIOError:
            if os.geteuid() == 0 or _owner(number):
                yield _Call(number, None)
            continue
        except ConnectionError:
            continue  # It has just ended.
        call = _Call(number, conn)
        if os.geteuid() in (0, call.uid):
            yield call
        else:
            conn.close()


def _numbers() -> set[int]:
    """Of all names of pages in this network namespace.

    The kernel hands the list out in pieces, and leaves out a name when another that comes before it goes away between two
    of them. So it is read twice.
    """
    return {number for _ in range(2) for number in _read_numbers() if 0 < number < 1 << 64}


def _read_numbers() -> Iterator[int]:
    prefix = rendezvous.status_name(0)[1:-1].decode()
    with open(_NAMES, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name = line.rstrip("\n").partition("@")[2]
            if name.startswith(prefix):
                with contextlib.suppress(ValueError):
                    yield int(name[len(prefix) :], 16)


def _listen(calls: list[_Call], deadline: float) -> None:
    """Wait until all have answered, or `deadline` comes."""
    waiting = {call.conn.fileno(): call for call in calls if call.conn is not None and call.pid != os.getpid()}
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting:
        left = max(deadline - time.monotonic(), 0)
        ready = poll.poll(left * 1000)
        for fd, _ in ready:
            if waiting[fd].take():
                poll.unregister(fd)
                del waiting[fd]
        if not ready and not left:
            return


def _owner(number: int) -> int:
    """The process that has the page with this `number`, as far as this user may look; 0 for none."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            for fd in _files(int(entry)):
                with contextlib.suppress(StatusError):
                    if page_in(fd).id == number:
                        return int(entry)
    return 0


def _files(pid: int) -> Iterator[int]:
    """Descriptors of the pages that the process has open; each is the caller's."""
    folder = f"/proc/{pid}/fd"
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{entry}").startswith(_FILE):
                # It may be another file by now, and one that a plain open would wait for.
                yield os.open(f"{folder}/{entry}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _program(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _page(told: dict[str, Any]) -> Page:
    rows = told["rows"]
    return Page(
        id=told["id"],
        pid=told["pid"],
        package=told["package"],
        begun_us=told["begun_us"],
        connections=tuple(_connection(row) for row in rows if row["kind"] == "connection"),
        listeners=tuple(
            Listener(row["local"], row["path"], row["opened_us"]) for row in rows if row["kind"] == "listener"
        ),
        hidden=told["hidden"],
        unsettled=told["unsettled"],
        stats=counts.told(told),
    )


def _connection(row: dict[str, Any]) -> Connection:
    row = {key: value for key, value in row.items() if key != "kind"}
    code, engine = row["fallback"], row["engine"]
    row["fallback"] = reasons.known(code) if code else None
    row["link_group"] = row["link_group"] or None
    row["engine"] = engine.hex() if any(engine) else None
    return Connection(**row)
