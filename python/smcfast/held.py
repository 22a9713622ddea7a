"""The sockets of transports that are not ours: what they carry, and a word when they are closed."""

from __future__ import annotations

import socket
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from smcfast.info import SmcInfo

_by_number: weakref.WeakValueDictionary[int, HeldSocket] = weakref.WeakValueDictionary()


class HeldSocket(socket.socket):
    """The socket of an event loop's own transport, with the path that its connection has.

    Its end is how anybody but the protocol hears that the connection is lost: asyncio's transports close their socket,
    and uvloop's detach it, right behind connection_lost. A protocol of ours in between would be seen by the application.
    """

    __slots__ = ("_calls", "info")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._calls: list[Callable[[], object]] = []
        self.info: SmcInfo | None = None

    @classmethod
    def of(cls, sock: socket.socket, info: SmcInfo) -> Self:
        """Take over the descriptor of `sock`, which is without one from now on."""
        family, kind, proto = sock.family, sock.type, sock.proto
        held = cls(family, kind, proto, fileno=sock.detach())
        held.setblocking(False)
        held.info = info
        _by_number[held.fileno()] = held
        return held

    def when_closed(self, call: Callable[[], object]) -> None:
        """Have `call()` called when the socket is closed, at once if it is."""
        if self.fileno() < 0:
            call()
        else:
            self._calls.append(call)

    def close(self) -> None:
        """Close, and tell."""
        super().close()
        if self.fileno() < 0:  # otherwise somebody holds it open
            self._tell()

    def detach(self) -> int:
        """Give the descriptor away, and tell."""
        number = super().detach()
        self._tell()
        return number

    def _tell(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()


def smc_info(transport: Any) -> SmcInfo | None:
    """Tell which path the connection of `transport` takes, and why if it is "tcp": any transport or writer that smcfast has made.

    A blocking socket of smcfast tells it too. None when smcfast has not made it, and when its connection is lost.
    """
    own: SmcInfo | None = getattr(transport, "smc_info", None)
    if own is not None:
        return own
    info: SmcInfo | None = transport.get_extra_info("smc")
    sock = transport.get_extra_info("socket") if info is None else None
    if sock is None:
        return info
    number = sock.fileno()
    held = _by_number.get(number)
    # The number may be another connection's by now.
    return held.info if held is not None and held.fileno() == number else None
