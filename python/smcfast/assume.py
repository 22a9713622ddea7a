"""Assumed peers: the configuration says that they speak SMC, so the handshake begins without any discovery.

This is the only mode that can put handshake bytes into the stream of a plain TCP peer. The client proposes at once. A
server's assumed listener looks at the first bytes without taking them: no CLC message, and they are the
application's. The memory still needs a rendezvous connection: the server makes it to the engine and port of the client
that proposed.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from smcfast import netlink, rendezvous
from smcfast.discovery import BACKLOG
from smcfast.reasons import LOCAL
from smcfast.users import allowed_uids

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from smcfast.config import SmcConfig
    from smcfast.errors import Fallback

EYECATCHERS: Final = (b"\xe2\xd4\xc3\xd9", b"\xe2\xd4\xc3\xc4")
"""How every CLC message begins: "SMCR" or "SMCD" in EBCDIC (RFC 7609 A.2)."""

CLIENT_KNOWS: Final = frozenset(
    {"uid", "version", "protocol", "peer_stopped", "server_spoke_first", "resources", "handshake_failed"}
)
SERVER_KNOWS: Final = frozenset({"uid", "version", "protocol", "limit", "handshake_failed"})
"""Results of a discovery that an assumption would contradict. A server takes "peer_stopped" for a client that gave up
waiting, and may assume now."""


def may_assume(why: Fallback, known: frozenset[str]) -> bool:
    """May an end whose discovery ended with `why` still assume? Not when a handshake has been declined already."""
    return why.name == "peer_plain" or (why.code >> 16 == LOCAL and why.name not in known)


class Door:
    """Where the client of an assumed peer is called: named by its engine and its local TCP port."""

    def __init__(self, engine: bytes, tcp: socket.socket, config: SmcConfig) -> None:
        """:raises OSError: the name is taken, or no descriptor is left."""
        self._ends = _Ends(tcp, allowed_uids(config))
        self._sock = rendezvous.listen(rendezvous.assumed_name(engine, tcp.getsockname()[1]), BACKLOG)

    @property
    def watched(self) -> Sequence[socket.socket]:
        """What has something to read when somebody stands at the door; nothing once the door is closed."""
        return (self._sock,) if self._sock.fileno() >= 0 else ()

    def caller(self) -> socket.socket | None:
        """The server if it stands at the door; strangers are sent away, at most a door's worth at once.

        Closes the door when there is no descriptor to take the server in: it sees that, and declines.
        """
        for _ in range(BACKLOG + 1):
            try:
                conn, _ = self._sock.accept()
            except OSError as error:
                if error.errno in netlink.EXHAUSTED:
                    self.close()
                return None
            conn.setblocking(False)
            if self._ends.trusts(conn):
                return conn
            conn.close()
        return None

    def close(self) -> None:
        """Take the name away."""
        self._sock.close()


class Caller:
    """The server's way to the door of a client that proposed."""

    def __init__(self, tcp: socket.socket, config: SmcConfig) -> None:
        self._port = tcp.getpeername()[1]
        self._ends = _Ends(tcp, allowed_uids(config))

    def call(self, engine: bytes) -> socket.socket | None:
        """A connection to the client, None when it has no door on this host or is not to be trusted.

        :raises OSError: no descriptor or memory is left for one.
        """
        try:
            conn = rendezvous.call(rendezvous.assumed_name(engine, self._port))
        except OSError as error:
            if error.errno in netlink.EXHAUSTED:
                raise
            return None
        if self._ends.trusts(conn):
            return conn
        conn.close()
        return None


class _Ends:
    """Whom to trust at the other end of one TCP connection."""

    def __init__(self, tcp: socket.socket, allowed: Collection[int]) -> None:
        self._own, self._peer = netlink.address(tcp.getsockname()), netlink.address(tcp.getpeername())
        self._allowed = allowed

    def trusts(self, conn: socket.socket) -> bool:
        """An allowed user, and where the kernel can be asked, the one who has the other half of the connection."""
        uid = rendezvous.credentials(conn)[1]
        if uid not in self._allowed:
            return False
        try:
            entry = netlink.look_up(self._peer, self._own)
        except (netlink.SockDiagUnavailable, OSError):
            entry = None
        return entry is None or not entry.inode or entry.uid == uid


async def proposes(tcp: socket.socket, deadline: float) -> bool:
    """Does the client's stream begin with a CLC message? Every byte stays in the stream.

    False also when its first bytes have not come by `deadline`: a client that waits for the server to speak.
    """
    head = _peek(tcp)
    try:
        while head not in EYECATCHERS:
            if not any(eyecatcher.startswith(head) for eyecatcher in EYECATCHERS):
                return False
            # The bytes that are there must not wake us in a loop.
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(head) + 1)
            await rendezvous.readable((tcp,), deadline)
            before, head = head, _peek(tcp)
            if head == before:
                return False  # Nobody has more: its time, or its stream, is at the end.
        return True
    finally:
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _peek(tcp: socket.socket) -> bytes:
    try:
        return tcp.recv(len(EYECATCHERS[0]), socket.MSG_PEEK)
    except OSError:
        return b""
