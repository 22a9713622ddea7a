"""What was asked for with ssl= and its companions, and TLS over transports that the event loop does not know."""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True)
class Tls:
    """TLS for the connections of one call.

    :param context: True is the default context of a client.
    :param hostname: whose certificate a client wants.
    :param handshake_timeout: seconds; None is asyncio's default, as for `shutdown_timeout`.
    """

    context: ssl.SSLContext | bool
    hostname: str | None = None
    handshake_timeout: float | None = None
    shutdown_timeout: float | None = None

    def options(self, *, server_side: bool) -> dict[str, Any]:
        """The arguments for a method of the event loop."""
        return {
            "ssl": self.context,
            "ssl_handshake_timeout": self.handshake_timeout,
            "ssl_shutdown_timeout": self.shutdown_timeout,
            **({} if server_side else {"server_hostname": self.hostname}),
        }

    def layer(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BaseProtocol,
        shaken: asyncio.Future[None],
        *,
        server_side: bool,
    ) -> sslproto.SSLProtocol:
        """The protocol that speaks TLS for `protocol`, over any transport; `shaken` is done with the handshake."""
        context: Any = None if isinstance(self.context, bool) else self.context
        timeouts: Any = {
            "ssl_handshake_timeout": self.handshake_timeout,
            "ssl_shutdown_timeout": self.shutdown_timeout,
        }
        return sslproto.SSLProtocol(loop, protocol, context, shaken, server_side, self.hostname, **timeouts)


def teach_start_tls(loop: asyncio.AbstractEventLoop) -> None:
    """Let `loop.start_tls` take our transports: asyncio's takes all that say that they are fit, uvloop's its own only."""
    if isinstance(loop, asyncio.BaseEventLoop):
        return
    own = loop.start_tls

    async def start_tls(transport: Any, *args: Any, **options: Any) -> asyncio.Transport | None:
        if isinstance(transport, asyncio.BaseTransport):  # uvloop's are none
            return await asyncio.BaseEventLoop.start_tls(loop, transport, *args, **options)  # type: ignore[arg-type]
        return await own(transport, *args, **options)

    loop.start_tls = start_tls  # type: ignore[method-assign]


def of_client(
    context: ssl.SSLContext | bool | None,
    host: str | None,
    hostname: str | None,
    handshake_timeout: float | None,
    shutdown_timeout: float | None,
) -> Tls | None:
    """What a client has asked for, with asyncio's rules.

    :raises ValueError: something does not go with the rest.
    """
    if context:
        if hostname is None and not host:
            raise ValueError("You must set server_hostname when using ssl without a host")
        return Tls(context, host if hostname is None else hostname, handshake_timeout, shutdown_timeout)
    if hostname is not None:
        raise ValueError("server_hostname is only meaningful with ssl")
    _check_timeouts(handshake_timeout, shutdown_timeout)
    return None


def of_server(
    context: ssl.SSLContext | None, handshake_timeout: float | None, shutdown_timeout: float | None
) -> Tls | None:
    """What a server has asked for, with asyncio's rules.

    :raises TypeError: a bool instead of a context.
    :raises ValueError: something does not go with the rest.
    """
    if isinstance(context, bool):
        raise TypeError("ssl argument must be an SSLContext or None")
    if context is not None:
        return Tls(context, None, handshake_timeout, shutdown_timeout)
    _check_timeouts(handshake_timeout, shutdown_timeout)
    return None


def _check_timeouts(handshake: float | None, shutdown: float | None) -> None:
    if handshake is not None:
        raise ValueError("ssl_handshake_timeout is only meaningful with ssl")
    if shutdown is not None:
        raise ValueError("ssl_shutdown_timeout is only meaningful with ssl")
