"""A listener's name: as long as it exists, clients on this host know that smcfast serves the listener.

Workers that were forked with one listening socket share one name. The first one holds it; the others keep a connection
to the holder and take over when it hangs up, so the name lives as long as any of them serves.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from smcfast import netlink, rendezvous
from smcfast.acceptor import Acceptor
from smcfast.log import logger

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Collection

BACKLOG: Final = 4096
"""Workers that may wait behind one holder; one more serves all the same and only cannot take over."""
RETRY: Final = 0.01
"""Seconds until a worker that met a holder on the way in or out tries again."""
RETRIES_MAX: Final = 100
PATROL: Final = 1.0
"""Seconds between two looks at a name that somebody else has, who may give it up at any time."""


class Registration:
    """The name of one listening socket, held or waited for until `close`. Never raises: without it clients use TCP."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        allowed: Collection[int] | None = None,
        cookie: int | None = None,
    ) -> None:
        """
        :param allowed: the users whose processes may be siblings; None is the own one.
        :param cookie: by which clients find the listener; None is its own one.
        """
        self._loop = loop
        self._allowed = {os.geteuid()} if allowed is None else allowed
        self._cookie = 0
        self._owned: list[socket.socket] = []
        self._waiting: list[socket.socket] = []
        self._ahead: socket.socket | None = None
        self._acceptor: Acceptor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retries = 0
        try:
            self._cookie = netlink.cookie(listener) if cookie is None else cookie
        except OSError as error:  # as where the kernel has no cookies
            self._give_up(error)
        else:
            self._claim()

    @property
    def holds(self) -> bool:
        """Does this process hold the name? If not, a sibling does."""
        return len(self._owned) == 2

    def close(self) -> None:
        """Give the name up; a waiting sibling takes it over."""
        if self._timer is not None:
            self._timer.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        self._unfollow()
        # In this order: whoever sees the holder hang up finds the name free.
        for sock in reversed(self._owned + self._waiting):
            sock.close()
        self._owned.clear()
        self._waiting.clear()

    def _claim(self) -> None:
        self._timer = None
        try:
            if not self._hold():
                self._follow()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, why: object) -> None:
        logger.warning("listener %x is not announced, its clients use TCP: %s", self._cookie, why)
        self.close()

    def _hold(self) -> bool:
        """Take both names, or find that a sibling has them."""
        try:
            holder = rendezvous.listen(rendezvous.holder_name(self._cookie), BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._owned.append(holder)
        self._acceptor = Acceptor(self._loop, holder, BACKLOG, self._take_in)
        self._retries = 0
        self._announce()
        return True

    def _announce(self) -> None:
        """Make the listener's name, which a holder that was killed may still have for a moment."""
        self._timer = None
        try:
            self._owned.append(rendezvous.claim(rendezvous.listener_name(self._cookie)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                self._give_up(error)
                return
            # Only its existence counts, so somebody else's name serves as long as it is there.
            self._retries += 1
            if self._retries == RETRIES_MAX:
                logger.warning("listener %x was announced by a stranger", self._cookie)
            delay = RETRY if self._retries < RETRIES_MAX else PATROL
            self._timer = self._loop.call_later(delay, self._announce)

    def _follow(self) -> None:
        """Wait behind the holder."""
        try:
            conn = rendezvous.call(rendezvous.holder_name(self._cookie))
        except ConnectionRefusedError:
            # Between bind and listen, or between two holders.
            if self._retries < RETRIES_MAX:
                self._retries += 1
                self._timer = self._loop.call_later(RETRY, self._claim)
            else:
                self._go_alone("whoever has the holder's name does not listen")
            return
        except BlockingIOError:
            self._go_alone("too many workers wait for it")
            return
        uid = rendezvous.credentials(conn)[1]
        if uid not in self._allowed:
            conn.close()
            self._go_alone(f"user {uid} has the holder's name, and is not allowed")
            return
        self._retries = 0
        self._ahead = conn
        self._loop.add_reader(conn.fileno(), self._succeed)

    def _go_alone(self, why: str) -> None:
        """Do without the holder's name: a stranger who has it must not keep the clients away."""
        logger.warning("listener %x: this worker cannot take over from another one: %s", self._cookie, why)
        self._retries = RETRIES_MAX
        self._announce()

    def _unfollow(self) -> None:
        if self._ahead is not None:
            self._loop.remove_reader(self._ahead.fileno())
            self._ahead.close()
            self._ahead = None

    def _succeed(self) -> None:
        """The holder hung up."""
        self._unfollow()
        self._claim()

    def _take_in(self, conn: socket.socket) -> None:
        """Let a worker wait, and let those go that have gone."""
        still = []
        for waiting in [*self._waiting, conn]:
            if _is_silent(waiting):
                still.append(waiting)
            else:
                waiting.close()
        self._waiting = still


def _is_silent(conn: socket.socket) -> bool:
    """Waiting workers send nothing: whatever can be read is an end. Descriptors find no room here, and are not taken."""
    try:
        conn.recv(1)
    except (BlockingIOError, InterruptedError):
        return True
    except OSError:
        pass
    return False
