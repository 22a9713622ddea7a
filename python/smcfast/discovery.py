"""Discovery: does the peer of this TCP connection speak SMC? Nothing is ever put into the TCP stream to find out.

The client decides alone, and both ends agree whatever happens: a client that wants SMC sends GO on the rendezvous
connection, one that does not closes it (or never opened it); a server believes the first of the two that it sees.

Client (`Invitation`): before it connects, sock_diag says which listener owns the destination. Is that listener served
by smcfast, the client listens under the cookie of its own socket, connects, and waits for the server to call.
Server (`Caller`): right after accept, sock_diag says which socket is at the other end; the server calls it by its
cookie. No such name: a plain client, without any delay.
Where that leads nowhere and a shared directory is configured, both do the same by names in it, see `smcfast.folder`.

Uids, not process ids, tie a caller to a TCP socket: with workers forked from one parent the pids may differ.
"""

from __future__ import annotations

import contextlib
import os
import socket
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from smcfast import folder, netlink, option, remembered, rendezvous
from smcfast.errors import Fallback
from smcfast.folder import Folder, UnusableError
from smcfast.reasons import explained, reason, trouble
from smcfast.users import allowed_uids

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from smcfast.config import SmcConfig
    from smcfast.folder import Held
    from smcfast.spare import Spare

GRACE: Final = 0.05
"""Seconds that an acceptor has to call, counted from when the client sees that the connection was accepted."""
POLL_FIRST: Final = 0.0005
POLL_LAST: Final = 0.02
"""Seconds between two looks at whether the connection was accepted: doubled from the first to the last."""
STRANGERS_MAX: Final = 64
"""Callers that are not the server, before a client gives up."""
BACKLOG: Final = 8
NOT_LOOKED_FOR: Final = "discovery is switched off, and assume does not name this peer"
NO_CALL: Final = (
    f"a server of this address is announced in the shared directory, but did not call within {folder.WAIT} s: it is in "
    "another network, or addresses are translated on the way"
)
_Door: TypeAlias = "tuple[socket.socket, int | None] | Fallback"
"""A connection to a client, and the user who has to be there if that is known; or why there is none."""
LEADS_NOWHERE: Final = frozenset({"peer_plain", "no_sock_diag"})
"""Results of the look-up after which the shared directory is asked."""


def shared_folder(config: SmcConfig) -> Folder | None:
    """The directory for containers, if there is one."""
    path = config.rendezvous_dir
    return None if path is None else Folder(os.fspath(path), allowed_uids(config))


def _not_allowed(uid: int) -> Fallback:
    return explained("uid", f"the peer runs as user {uid}, who is not allowed; this is user {os.geteuid()}")


def _plain(ends: tuple[netlink.Address, netlink.Address] | None, why: Fallback) -> Fallback:
    """`why`, unless "no such socket" may mean that the kernel has no look-ups at all: it must know the own end."""
    if why.name != "peer_plain" or netlink.works() or ends is None:
        return why
    try:
        return why if netlink.look_up(*ends) is not None else reason("no_sock_diag")
    except netlink.SockDiagUnavailable:
        return reason("no_sock_diag")


def is_announced(sockaddr: tuple[Any, ...], config: SmcConfig) -> bool:
    """Would a connection to `sockaddr` meet a server of smcfast on this host?"""
    if "rendezvous" not in config.discovery:
        return False
    target = netlink.destination(sockaddr)
    shared = shared_folder(config)
    with contextlib.suppress(netlink.SockDiagUnavailable, OSError):
        listener = netlink.listener_of(target)
        if listener is not None and rendezvous.exists(rendezvous.listener_name(listener.cookie)):
            return True
    with contextlib.suppress(UnusableError, OSError):
        return shared is not None and shared.announces(target)
    return False


class Invitation:
    """The client's half: opened before connect, answered after it, always closed."""

    def __init__(
        self, sock: socket.socket, sockaddr: tuple[Any, ...], config: SmcConfig, *, option_dropped: bool = False
    ) -> None:
        """:param option_dropped: see `option.Mark`."""
        self._config = config
        self._door: socket.socket | Held | None = None
        self._listener: Hashable = None
        self._owner: int | None = None
        self.why: Fallback | None = self._open(sock, sockaddr)
        """Why there is no rendezvous; None when a server may call."""
        self.mark: option.Mark = option.Mark(sock, sockaddr, config, dropped=option_dropped)
        """What the SYN says."""

    def _open(self, sock: socket.socket, sockaddr: tuple[Any, ...]) -> Fallback | None:
        if "rendezvous" not in self._config.discovery:
            return explained("disabled", NOT_LOOKED_FOR)
        shared = shared_folder(self._config)
        try:
            why = self._open_by_cookie(sock, netlink.destination(sockaddr))
            if shared is not None and why is not None and why.name in LEADS_NOWHERE:
                why = self._open_in(shared, sock, sockaddr, why)
        except OSError as error:
            return trouble(error)
        return why

    def _open_by_cookie(self, sock: socket.socket, target: netlink.Address) -> Fallback | None:
        try:
            listener = netlink.listener_of(target)
        except netlink.SockDiagUnavailable:
            return reason("no_sock_diag")
        if listener is None or not rendezvous.exists(rendezvous.listener_name(listener.cookie)):
            return reason("peer_plain")
        if listener.cookie in remembered.listeners:
            return reason("listener_remembered")
        self._listener = listener.cookie
        self._owner = listener.uid
        self._door = rendezvous.listen(rendezvous.client_name(netlink.cookie(sock)), BACKLOG)
        return None

    def _open_in(
        self, shared: Folder, sock: socket.socket, sockaddr: tuple[Any, ...], otherwise: Fallback
    ) -> Fallback | None:
        """The same by the names of a directory; for them the own address has to be known before the connect."""
        target = netlink.destination(sockaddr)
        self._listener = (self._config.rendezvous_dir, target)
        try:
            if not shared.announces(target):
                return otherwise
            if self._listener in remembered.listeners:
                return reason("listener_remembered")
            self._door = shared.listen(folder.source(sock, sockaddr), target, BACKLOG)
        except UnusableError as error:
            return explained("rendezvous_dir", str(error))
        return None

    async def answer(self, sock: socket.socket, deadline: float, spin: float = 0.0) -> socket.socket | Fallback:
        """Wait on the connected `sock` until its server calls: the connection to it, or why there is none.

        The caller still has to close the invitation, and that is what tells the server "TCP".

        :param spin: seconds to look for the call before sleeping.
        """
        ends = netlink.ends(sock)
        try:
            if self._door is None or self.why is not None or ends is None:
                return _plain(ends, self.why or reason("peer_plain"))
            allowed = allowed_uids(self._config)
            if isinstance(self._door, socket.socket):
                answer = await _Visit(self._door, sock, *ends, allowed, self._owner).wait(deadline, spin)
            else:
                answer = await _UnseenVisit(self._door.sock, sock, *ends, allowed).wait(deadline, spin)
        except netlink.SockDiagUnavailable:
            return reason("no_sock_diag")
        except OSError as error:
            return trouble(error)
        if isinstance(answer, Fallback) and answer.name in ("accepted_plain", "discovery_timeout"):
            remembered.listeners.add(self._listener)
        return answer

    def close(self) -> None:
        """Close the door: whoever called and was not taken in finds out that the connection is TCP."""
        if self._door is not None:
            self._door.close()
            self._door = None


class _Visit:
    """The client's wait for its server."""

    _nobody = reason("accepted_plain")
    """What it is when the server's time to call is over."""

    def __init__(
        self,
        door: socket.socket,
        tcp: socket.socket,
        own: netlink.Address,
        peer: netlink.Address,
        allowed: Collection[int],
        owner: int | None = None,
    ) -> None:
        """:param owner: whose the listener is."""
        self._door = door
        self._tcp = tcp
        self._owner = owner
        self._own = own
        self._peer = peer
        self._allowed = allowed
        self._strangers = 0

    async def wait(self, deadline: float, spin: float) -> socket.socket | Fallback:
        step = POLL_FIRST
        accepted_until = self._known_wait(monotonic())
        while True:
            answer = self._caller() or self._first_bytes()
            if answer is not None:
                return answer
            now = monotonic()
            # The first look comes too early: a server that calls at once is quicker than the question.
            if accepted_until is None and step > POLL_FIRST and self._accepted() is not None:
                accepted_until = now + GRACE
            if accepted_until is not None and now >= accepted_until:
                return self._nobody
            if now >= deadline:
                return reason("discovery_timeout")
            until = now + step if accepted_until is None else accepted_until
            step = min(2 * step, POLL_LAST)
            await rendezvous.readable((self._door, self._tcp), min(until, deadline), spin)
            spin = 0.0  # Who did not come at once is not near.

    def _known_wait(self, _now: float) -> float | None:
        """Until when the server may call, if that does not depend on when it accepts."""
        return None

    def _caller(self) -> socket.socket | Fallback | None:
        """The server if it stands at the door; strangers are sent away."""
        while True:
            try:
                conn, _ = self._door.accept()
            except (BlockingIOError, InterruptedError):
                return None
            except OSError as error:
                return trouble(error)
            with contextlib.ExitStack() as unless_taken:
                unless_taken.callback(conn.close)
                conn.setblocking(False)
                uid = rendezvous.credentials(conn)[1]
                if self._is_server(uid):
                    if uid not in self._allowed:
                        return _not_allowed(uid)
                    unless_taken.pop_all()
                    return conn
            self._strangers += 1
            if self._strangers >= STRANGERS_MAX:
                return reason("uid")

    def _is_server(self, uid: int) -> bool:
        """Has a process of this user the server's half? The listener's owner may have it whoever accepts: no need to ask."""
        if uid == self._owner:
            return True
        server = self._accepted()
        return server is not None and server.uid == uid

    def _accepted(self) -> netlink.Entry | None:
        """The server's half of the connection once a process has it; a connection in the queue has no inode."""
        entry = netlink.look_up(self._peer, self._own)
        return entry if entry is not None and entry.inode else None

    def _first_bytes(self) -> Fallback | None:
        """Bytes or an end on TCP come from a server that did not ask: they are the application's and stay there."""
        try:
            data = self._tcp.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return reason("peer_plain")
        return reason("server_spoke_first") if data else reason("peer_plain")


class _UnseenVisit(_Visit):
    """The same where the server's half of the connection is in another network namespace."""

    _nobody = explained("accepted_plain", NO_CALL)

    def _known_wait(self, now: float) -> float:
        return now + folder.WAIT

    def _is_server(self, uid: int) -> bool:
        return uid in self._allowed


class Caller:
    """The server's half: made right after accept, without waiting."""

    def __init__(self, sock: socket.socket, config: SmcConfig, busy: bool, spare: Spare | None = None) -> None:
        """Look for the client, and call it.

        :param busy: no more handshakes are wanted; a client that hopes for one is told so at once.
        :param spare: for telling a client that no descriptor is left: who says nothing is taken for a plain server.
        """
        self.conn: socket.socket | None = None
        """The connection to the client, until somebody takes it."""
        self.why: Fallback | None = None
        """Why there is none."""
        if "rendezvous" not in config.discovery:
            self.why = explained("disabled", NOT_LOOKED_FOR)
            return
        self._allowed = allowed_uids(config)
        self._folder = shared_folder(config)
        try:
            self._call(sock, busy)
        except OSError as error:
            if error.errno in netlink.EXHAUSTED and spare is not None:
                with spare.given(), contextlib.suppress(OSError):
                    self._call(sock, busy=True)
            self.why = trouble(error)

    def _call(self, sock: socket.socket, busy: bool) -> None:
        ends = netlink.ends(sock)
        door = self._by_cookie(ends)
        if isinstance(door, Fallback) and self._folder is not None and ends is not None and door.name in LEADS_NOWHERE:
            door = self._in_folder(self._folder, *ends, door)
        if isinstance(door, Fallback):
            self.why = door
            return
        # From here on the client waits for an answer, and closing the connection is one.
        conn, expected = door
        with contextlib.ExitStack() as unless_kept:
            unless_kept.callback(conn.close)
            uid = rendezvous.credentials(conn)[1]
            if uid not in self._allowed:
                self.why = _not_allowed(uid)
            elif expected not in (None, uid):
                self.why = reason("uid")
            elif busy:
                self.why = reason("limit")
            else:
                self.conn = conn
                unless_kept.pop_all()

    def _by_cookie(self, ends: tuple[netlink.Address, netlink.Address] | None) -> _Door:
        """A connection to the client, and the user who has to be there."""
        try:
            client = None if ends is None else netlink.look_up(*reversed(ends))
        except netlink.SockDiagUnavailable:
            return reason("no_sock_diag")
        if client is None or client.state != netlink.TCP_ESTABLISHED:
            return _plain(ends, reason("peer_plain"))
        try:
            return rendezvous.call(rendezvous.client_name(client.cookie)), client.uid
        except (ConnectionError, BlockingIOError):
            return reason("peer_plain")

    def _in_folder(self, shared: Folder, own: netlink.Address, peer: netlink.Address, otherwise: Fallback) -> _Door:
        """The same by the names of a directory, where nobody can say which user it has to be."""
        try:
            return shared.call(peer, own), None
        except UnusableError as error:
            return explained("rendezvous_dir", str(error))
        except PermissionError:
            return reason("uid")
        except (ConnectionError, BlockingIOError, FileNotFoundError):
            return otherwise

    def give_away(self) -> int | None:
        """The descriptor of the connection to the client, which is the caller's from now on; None when there is none."""
        conn, self.conn = self.conn, None
        return None if conn is None else conn.detach()

    def refuse(self, why: Fallback) -> None:
        """Hang up, and keep the reason."""
        self.why = why
        self.close()

    def close(self) -> None:
        """Hang up, if that has not happened yet."""
        if self.conn is not None:
            self.conn.close()
            self.conn = None
