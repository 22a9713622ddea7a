"""The exceptions of smcfast, by blame.

Everything that goes wrong on the wire is an ``OSError``, so code written for asyncio's streams catches it unchanged.
A wrong configuration is a ``ValueError``: retrying will not mend it.
"""

from __future__ import annotations

import errno
from typing import NamedTuple


class Fallback(NamedTuple):
    """Why a connection is on path "tcp"."""

    code: int
    """A CLC diagnosis code of the protocol, or one of the local codes ``0x0A00_00NN`` of `smcfast.reasons`."""
    name: str
    """A short stable name, fit for a metric's label."""
    text: str
    """One sentence for people."""

    def __str__(self) -> str:
        return f"{self.text} ({self.name}, 0x{self.code:08X})"


class SmcError(OSError):
    """The base of every run-time failure that smcfast itself raises."""


class SmcFallbackError(SmcError):
    """The configuration forbids TCP (``fallback="forbid"``) and the connection would have been TCP."""

    def __init__(self, fallback: Fallback) -> None:
        super().__init__(errno.EPROTONOSUPPORT, f"no SMC path, and fallback to TCP is forbidden: {fallback}")
        self.fallback = fallback

    def __reduce__(self) -> tuple[type[SmcFallbackError], tuple[Fallback]]:
        return type(self), (self.fallback,)

    @property
    def code(self) -> int:
        """The reason's code, see `Fallback.code`."""
        return self.fallback.code

    @property
    def name(self) -> str:
        """The reason's short name."""
        return self.fallback.name

    @property
    def text(self) -> str:
        """The reason as a sentence."""
        return self.fallback.text


class SmcHandshakeError(SmcError, ConnectionError):
    """A handshake broke after its bytes had entered the stream, and there is no way to a clean TCP connection.

    Only the peer's death or a ``sock=`` that cannot be connected again leads here; in every other case smcfast opens
    a new plain connection and the caller sees nothing.
    """

    def __init__(self, fallback: Fallback) -> None:
        super().__init__(errno.ECONNABORTED, f"the SMC handshake spoiled the connection: {fallback}")
        self.fallback = fallback

    def __reduce__(self) -> tuple[type[SmcHandshakeError], tuple[Fallback]]:
        return type(self), (self.fallback,)


class SmcLinkError(SmcError, ConnectionResetError):
    """The RDMA link that carried the connection is lost: the message names the cause.

    That may be a peer that does not answer (its process, its host or the way to it), a port that is down, a device that
    was removed, or a peer that has ended the link. What had come before can be read first. Connections on other links go on.
    """


class PeerMisbehaved(SmcError, ConnectionError):
    """The peer broke the protocol: the message names the field and the fault. The connection is over."""


class SmcConfigError(ValueError):
    """A field of `SmcConfig` or an ``SMCFAST_*`` variable is not what it must be.

    The message says which of the two it was, the value, the range and the unit.
    """
