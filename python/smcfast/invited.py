"""Sockets that a program connects by itself, before it gives them to `create_smc_connection`.

A peer finds a client by what is there before the connect. So it is made there, and waits for a moment: whoever then uses the
socket in any other way has a plain connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import weakref
from typing import TYPE_CHECKING, Final

from smcfast import fallback, kernel, option
from smcfast.config import configured
from smcfast.discovery import Invitation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

PATIENCE: Final = 1.0
"""Seconds after which a connected socket that nobody has asked for stays plain; a server of smcfast waits so long."""
_SENT: Final = struct.Struct("=24xI92xQ16xI")
"""Of the kernel's struct tcp_info: segments that are not acknowledged, bytes that are, bytes that have not been sent."""

_waiting: weakref.WeakKeyDictionary[socket.socket, _Waiting] = weakref.WeakKeyDictionary()


class _Waiting:
    """An invitation between connect and its use; it goes with its socket."""

    def __init__(self, invitation: Invitation) -> None:
        self._invitation = invitation
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, invitation.close)

    def take(self) -> Invitation:
        self._timer.cancel()
        return self._invitation

    def __del__(self) -> None:
        if not self._timer.cancelled():
            self._timer.cancel()
            self._invitation.close()


async def connecting(sock: socket.socket, address: tuple[Any, ...], connect: Callable[[], Awaitable[None]]) -> None:
    """Have `connect` connect `sock` to `address`, so that the peer can find who gives it to `create_smc_connection`."""
    config = configured(None)
    if fallback.beforehand(config) is not None or kernel.is_smc(sock) or not set(config.paths) - {"kernel"}:
        await connect()
        return
    if option.is_wanted(config):
        await option.ready()
    invitation = Invitation(sock, address, config)
    try:
        await connect()
    except BaseException:
        invitation.close()
        raise
    _waiting[sock] = _Waiting(invitation)


def take(sock: socket.socket) -> Invitation | None:
    """The invitation of `sock`, if it was connected by `connecting` just now and nothing was sent over it since."""
    waiting = _waiting.pop(sock, None)
    if waiting is None:
        return None
    invitation = waiting.take()
    if _was_written_to(sock):
        invitation.close()
        return None
    return invitation


def forget(sock: socket.socket) -> None:
    """`sock` is used as it is."""
    waiting = _waiting.pop(sock, None)
    if waiting is not None:
        waiting.take().close()


def _was_written_to(sock: socket.socket) -> bool:
    try:
        unacknowledged, acknowledged, unsent = _SENT.unpack(
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SENT.size)
        )
    except (OSError, struct.error):
        return False  # It is lost, which whoever uses it finds out; a kernel this old does not tell.
    # The SYN counts as one.
    return bool(unacknowledged or unsent or acknowledged > 1)
