"""The blocking socket of a connection that is TCP: the standard library's, which says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smcfast import page
from smcfast.held import HeldSocket

if TYPE_CHECKING:
    import socket
    from typing import Self

    from smcfast.info import SmcInfo


class PlainSocket(HeldSocket):
    """A `socket.socket` over TCP. All its methods are the standard library's."""

    __slots__ = ()

    @classmethod
    def over(cls, tcp: socket.socket, info: SmcInfo, role: str, timeout: float | None) -> Self:
        """Take over the descriptor of `tcp`, which is connected; `role` is "client" or "server"."""
        plain = cls.of(tcp, info)
        code = 0 if info.fallback is None else info.fallback.code
        row = page.show_socket(None, plain, info.path, role, code)
        if row is not None:
            plain.when_closed(row.close)
        plain.settimeout(timeout)
        return plain

    @property
    def smc_info(self) -> SmcInfo | None:
        """The path, "tcp", and the reason; None for a copy that `dup` has made."""
        return self.info
