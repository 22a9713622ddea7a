"""Discovery: does the peer of this TCP connection speak SMC? Nothing is ever put into the TCP stream to find out.

The client decides alone, and both ends agree whatever happens: a client that wants SMC sends GO on the rendezvous
connection, one that does not closes it (or never opened it); a server believes the first of the two that it sees.

Client (`Invitation`): before it connects, sock_diag says which listener owns the destination. Is that listener served
by smcfast, the client listens under the cookie of its own socket, connects, and waits for the server to call.
Server (`Caller`): right after accept, sock_diag says which socket is at the other end; the server calls it by its
cookie. No such name: a plain client, without any delay.

Uids, not process ids, tie a caller to a TCP socket: with workers forked from one parent the pids may differ.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from smcfast import netlink, remembered, rendezvous
from smcfast.reasons import explained, reason, trouble

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from smcfast.config import SmcConfig
    from smcfast.errors import Fallback
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


def allowed_uids(config: SmcConfig) -> Collection[int]:
    """The users whose processes may share memory with this one."""
    return {os.geteuid(), *config.allow_uids}


def _plain(ends: tuple[netlink.Address, netlink.Address] | None, why: Fallback) -> Fallback:
    """`why`, unless "no such socket" may mean that the kernel has no look-ups at all: it must know the own end."""
    if why.name != "peer_plain" or netlink.works() or ends is None:
        return why
    try:
        return why if netlink.look_up(*ends) is not None else reason("no_sock_diag")
    except netlink.SockDiagUnavailable:
        return reason("no_sock_diag")


class Invitation:
    """The client's half: opened before connect, answered after it, always closed."""

    def __init__(self, sock: socket.socket, sockaddr: tuple[Any, ...], config: SmcConfig) -> None:
        self._config = config
        self._door: socket.socket | None = None
        self._listener = 0
        self.why: Fallback | None = None
        """Why there is no rendezvous; None when a server may call."""
        if "rendezvous" not in config.discovery:
            self.why = explained("disabled", NOT_LOOKED_FOR)
        else:
            self._open(sock, sockaddr)

    def _open(self, sock: socket.socket, sockaddr: tuple[Any, ...]) -> None:
        try:
            listener = netlink.listener_of(netlink.destination(sockaddr))
            if listener is None or not rendezvous.exists(rendezvous.listener_name(listener.cookie)):
                self.why = reason("peer_plain")
            elif listener.cookie in remembered.listeners:
                self.why = reason("listener_remembered")
            else:
                self._listener = listener.cookie
                self._door = rendezvous.listen(rendezvous.client_name(netlink.cookie(sock)), BACKLOG)
        except netlink.SockDiagUnavailable:
            self.why = reason("no_sock_diag")
        except OSError as error:
            self.why = trouble(error)

    async def answer(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, deadline: float
    ) -> socket.socket | Fallback:
        """Wait on the connected `sock` until its server calls: the connection to it, or why there is none.

        The caller still has to close the invitation, and that is what tells the server "TCP".
        """
        ends = netlink.ends(sock)
        try:
            if self._door is None or self.why is not None or ends is None:
                return _plain(ends, self.why or reason("peer_plain"))
            answer = await _Visit(self._door, sock, *ends, allowed_uids(self._config)).wait(loop, deadline)
        except netlink.SockDiagUnavailable:
            return reason("no_sock_diag")
        except OSError as error:
            return trouble(error)
        if answer in (reason("accepted_plain"), reason("discovery_timeout")):
            remembered.listeners.add(self._listener)
        return answer

    def close(self) -> None:
        """Close the door: whoever called and was not taken in finds out that the connection is TCP."""
        if self._door is not None:
            self._door.close()
            self._door = None


class _Visit:
    """The client's wait for its server."""

    def __init__(
        self,
        door: socket.socket,
        tcp: socket.socket,
        own: netlink.Address,
        peer: netlink.Address,
        allowed: Collection[int],
    ) -> None:
        self._door = door
        self._tcp = tcp
        self._own = own
        self._peer = peer
        self._allowed = allowed
        self._strangers = 0

    async def wait(self, loop: asyncio.AbstractEventLoop, deadline: float) -> socket.socket | Fallback:
        step = POLL_FIRST
        accepted_until: float | None = None
        while True:
            answer = self._caller() or self._first_bytes()
            if answer is not None:
                return answer
            now = loop.time()
            if accepted_until is None and self._accepted() is not None:
                accepted_until = now + GRACE
            if accepted_until is not None and now >= accepted_until:
                return reason("accepted_plain")
            if now >= deadline:
                return reason("discovery_timeout")
            until = now + step if accepted_until is None else accepted_until
            step = min(2 * step, POLL_LAST)
            await rendezvous.readable(loop, (self._door, self._tcp), min(until, deadline))

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
                server = self._accepted()
                uid = rendezvous.credentials(conn)[1]
                if server is not None and server.uid == uid:
                    if uid not in self._allowed:
                        return reason("uid")
                    unless_taken.pop_all()
                    return conn
            self._strangers += 1
            if self._strangers >= STRANGERS_MAX:
                return reason("uid")

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
        try:
            self._call(sock, allowed_uids(config), busy)
        except netlink.SockDiagUnavailable:
            self.why = reason("no_sock_diag")
        except OSError as error:
            if error.errno in netlink.EXHAUSTED and spare is not None:
                with spare.given(), contextlib.suppress(OSError, netlink.SockDiagUnavailable):
                    self._call(sock, allowed_uids(config), busy=True)
            self.why = trouble(error)

    def _call(self, sock: socket.socket, allowed: Collection[int], busy: bool) -> None:
        ends = netlink.ends(sock)
        client = None if ends is None else netlink.look_up(*reversed(ends))
        if client is None or client.state != netlink.TCP_ESTABLISHED:
            self.why = _plain(ends, reason("peer_plain"))
            return
        try:
            conn = rendezvous.call(rendezvous.client_name(client.cookie))
        except (ConnectionError, BlockingIOError):
            self.why = reason("peer_plain")
            return
        # From here on the client waits for an answer, and closing the connection is one.
        uid = rendezvous.credentials(conn)[1]
        if uid != client.uid or uid not in allowed:
            self.why = reason("uid")
        elif busy:
            self.why = reason("limit")
        else:
            self.conn = conn
            return
        conn.close()

    def refuse(self, why: Fallback) -> None:
        """Hang up, and keep the reason."""
        self.why = why
        self.close()

    def close(self) -> None:
        """Hang up, if that has not happened yet."""
        if self.conn is not None:
            self.conn.close()
            self.conn = None
