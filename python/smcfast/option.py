"""The TCP option with which both ends say in SYN and SYN/ACK that they speak SMC (RFC 7609, docs/option.md).

A program in the kernel puts it there on sockets that are marked before they connect or listen. The process joins the
program that an administrator has installed (``smcfast option install``), or attaches one of its own where it may.
Whatever stands against that is a reason, and the connection is as it would be without the option.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from smcfast import _native, devices, kernel, netlink, remembered
from smcfast.errors import Fallback
from smcfast.reasons import explained, reason

if _native.AVAILABLE:
    from smcfast import _core

if TYPE_CHECKING:
    from smcfast._core import TcpOption
    from smcfast.config import SmcConfig

DIRECTORY: Final = "/run/smcfast/option"
"""Where ``smcfast option install`` keeps the program, unless it is told otherwise."""
PATIENCE: Final = 0.2
"""Seconds for which a SYN with the option may go unanswered before one without it is sent too."""
RETRY: Final = 30.0
"""Seconds until a process that had no program looks for one again."""

_NEEDED: Final = "it takes CAP_BPF and CAP_NET_ADMIN, or a program that `smcfast option install` has installed"
_UNSEEN: Final = "the program did not see the socket: it was removed, or is attached to another cgroup"
_LATE: Final = "the socket was listening already when the server began"
_HINTS: Final = {
    errno.EPERM: _NEEDED,
    errno.EACCES: _NEEDED,
    errno.E2BIG: "64 programs are attached to this cgroup already: `smcfast option install` serves all processes with one",
    errno.EOPNOTSUPP: "this kernel has no such programs",
    errno.EINVAL: "this kernel is too old for the program, which needs Linux 5.15",
}
_STATES: Final = {"no room": "option_no_room", "unfit": "option_unfit", "no syn": "option_cookie"}
_NOTHING_KNOWN: Final = frozenset({"peer_plain", "disabled", "no_sock_diag", "sock_given"})
"""Results of other modes to which what the option knows is preferred."""


def smcr_possible(config: SmcConfig) -> bool:
    """May a connection with another host be SMC-R: does the configuration allow it, and is there a device?"""
    return "smc-r" in config.paths and devices.are_there()


def is_wanted(config: SmcConfig) -> bool:
    """Is the option to be sent and answered?"""
    return "option" in config.discovery and smcr_possible(config)


class Source:
    """The program that this process uses, found at its first use; or why there is none."""

    def __init__(self) -> None:
        self._found: dict[str, TcpOption] = {}
        self._why: Fallback | None = None
        self._until = 0.0

    @property
    def program(self) -> TcpOption | None:
        """The one that was found, if one was."""
        return self._found.get("program")

    @property
    def is_known(self) -> bool:
        """Need `find` not look any more, for the time being?"""
        return self.program is not None or monotonic() < self._until

    def find(self) -> TcpOption | Fallback:
        """Look for the program: the installed one first. The own one may take a tenth of a second. Thread-safe."""
        program = self.program
        if program is not None:
            return program
        if self._why is not None and monotonic() < self._until:
            return self._why
        found = find(DIRECTORY)
        if isinstance(found, Fallback):
            self._why, self._until = found, monotonic() + RETRY
            return found
        # The first one stays, for the sake of sockets that are marked in it.
        return self._found.setdefault("program", found[0])

    def forget(self, program: TcpOption) -> None:
        """`program` does not work any more: look for another one when the next connection needs it."""
        if self.program is program:
            self._found.pop("program", None)


def find(directory: str) -> tuple[TcpOption, str] | Fallback:
    """A program, "installed" in `directory` or this process's "own"; or why there is none."""
    try:
        return _core.TcpOption.join(directory), "installed"
    except OSError as error:
        hint = f"; {directory}: {error.strerror}" if error.errno != errno.ENOENT else ""
    try:
        return _core.TcpOption.attach(), "own"
    except OSError as error:
        return explained(
            "option_unavailable", f"{error.strerror}; {_HINTS.get(error.errno or 0, 'see docs/option.md')}{hint}"
        )


source: Source = Source()
"""This process's."""


async def ready() -> None:
    """Find the program in a thread, if nobody has looked yet: loading one takes its time."""
    if not source.is_known:
        await asyncio.get_running_loop().run_in_executor(None, source.find)


def announce(sock: socket.socket) -> Fallback | None:
    """Let `sock`, which is not yet connected or listening, send the option; why it does not, or None.

    For sockets that a program connects itself and gives to `open_smc_connection` as ``sock=``.
    """
    if not _native.AVAILABLE:
        return reason("platform")
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return reason("not_inet")
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) != socket.IPPROTO_TCP:
        return explained(
            "option_unfit", "no socket of Multipath TCP, or of the kernel's own SMC, takes part in the option"
        )
    program = source.find()
    if isinstance(program, Fallback):
        return program
    try:
        program.mark(sock.fileno())
    except OSError as error:
        return explained("option_unavailable", error.strerror or str(error))
    return None


def outcome(sock: socket.socket, otherwise: Fallback) -> Fallback | None:
    """Why the peer of `sock` is not known to speak SMC; None when both ends have announced it.

    :param otherwise: the reason for a socket that takes no part, and for what the option has nothing to add to.
    """
    program = source.program
    if program is None:
        return otherwise
    try:
        state = program.state(sock.fileno())
    except OSError as error:
        return explained("option_unavailable", error.strerror or str(error))
    if state == "announced":
        return None
    if state is None:
        return otherwise
    if state in ("wanted", "taken up"):
        source.forget(program)
        return _weigh(explained("option_unavailable", _UNSEEN), otherwise)
    return _weigh(reason(_STATES.get(state, "peer_plain")), otherwise)


def _weigh(why: Fallback, otherwise: Fallback) -> Fallback:
    """Which of the two says more?"""
    if otherwise.name not in _NOTHING_KNOWN or (why.name == "peer_plain" and otherwise.name == "no_sock_diag"):
        return otherwise
    return why


class Mark:
    """A client's part, from before its connect on."""

    def __init__(
        self, sock: socket.socket, sockaddr: tuple[Any, ...], config: SmcConfig, *, dropped: bool = False
    ) -> None:
        """:param dropped: another SYN to this destination had the option, and was not answered in time."""
        self._why: Fallback | None = None
        self.sent: bool = False
        """Does the SYN have the option?"""
        if not is_wanted(config):
            if "option" in config.discovery and "rendezvous" not in config.discovery:
                self._why = explained("option_unavailable", "no RDMA device is here, or paths does not name smc-r")
            return
        self._destination = netlink.destination(sockaddr)
        if dropped:
            self._why = reason("option_dropped")
        elif self._destination in remembered.announced:
            self._why = explained(
                "destination_remembered", "the option was left out: see the last connection to this peer"
            )
        else:
            self._why = announce(sock)
            self.sent = self._why is None

    def answer(self, sock: socket.socket, otherwise: Fallback) -> Fallback | None:
        """After the connect: None when the peer has announced SMC, else why the connection is TCP."""
        if self.sent:
            return outcome(sock, otherwise)
        if self._why is None:
            return otherwise
        if self._why.name == "option_dropped":
            self.remember()
        return _weigh(self._why, otherwise)

    def remember(self) -> None:
        """Leave the option out for a while when this destination is connected to."""
        remembered.announced.add(self._destination)


class Offer:
    """A server's part: its listeners answer the option."""

    def __init__(self, config: SmcConfig) -> None:
        self._wanted = is_wanted(config)
        self._is_marked = False
        self._why: Fallback | None = None
        """Why no listener answers; it counts as long as none does."""
        if not self._wanted and "option" in config.discovery and "rendezvous" not in config.discovery:
            self._why = explained("option_unavailable", "no RDMA device is here, or paths does not name smc-r")

    def mark(self, listener: socket.socket) -> bool:
        """Before `listener` listens: let it answer. False when it will not."""
        if not self._wanted or listener.family not in (socket.AF_INET, socket.AF_INET6) or kernel.is_smc(listener):
            return False
        self._why = announce(listener)
        self._is_marked = self._is_marked or self._why is None
        return self._why is None

    def check(self, listener: socket.socket) -> None:
        """After `listener`, which is marked, listens: has the program seen it?"""
        program = source.program
        with contextlib.suppress(OSError):
            if program is not None and program.state(listener.fileno()) != "taken up":
                self._is_marked, self._why = False, explained("option_unavailable", _LATE)

    def answer(self, conn: socket.socket, otherwise: Fallback) -> Fallback | None:
        """After accept: None when the client and this listener have announced SMC, else why the connection is TCP."""
        if self._is_marked:
            return outcome(conn, otherwise)
        return otherwise if self._why is None else _weigh(self._why, otherwise)
