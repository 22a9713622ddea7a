"""`open_smc_connection`: asyncio's `open_connection` over the fastest path that both ends share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import sys
from typing import TYPE_CHECKING, Any, TypeVar, cast

from smcfast import addresses, fallback, invited, kernel, log, negotiate, option, order, streams
from smcfast.config import configured
from smcfast.delivery import Delivery
from smcfast.discovery import Invitation
from smcfast.errors import Fallback, SmcFallbackError, SmcHandshakeError
from smcfast.negotiate import Clock
from smcfast.reasons import explained, reason
from smcfast.tls import of_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from smcfast._core import Endpoint
    from smcfast.config import SmcConfig
    from smcfast.delivery import Delivered
    from smcfast.info import SmcInfo
    from smcfast.streams import SmcStreamReader, SmcStreamWriter

DEFAULT_LIMIT = 2**16

_ProtocolT = TypeVar("_ProtocolT", bound=asyncio.BaseProtocol)


async def open_smc_connection(
    host: str | None = None,
    port: int | str | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    ssl: ssl.SSLContext | bool | None = None,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    sock: socket.socket | None = None,
    local_addr: tuple[str, int] | None = None,
    server_hostname: str | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
    happy_eyeballs_delay: float | None = None,
    interleave: int | None = None,
    all_errors: bool = False,
    config: SmcConfig | None = None,
) -> tuple[SmcStreamReader, SmcStreamWriter]:
    """Connect to `host` and `port`; the arguments are those of `asyncio.open_connection`.

    The path and, when it is "tcp", the reason are in ``writer.get_extra_info("smc")``, an `SmcInfo`.

    :param sock: a connected stream socket; discovery is skipped unless ``config.assume`` names its peer.
    :param all_errors: raise an `ExceptionGroup` of what went wrong with each address; from Python 3.12 on.
    :param config: `SmcConfig`; None takes ``SMCFAST_*`` variables and defaults.
    :raises OSError: as asyncio, when no address can be connected.
    :raises SmcFallbackError: the path would be "tcp" and ``config.fallback`` is "forbid".
    :raises SmcHandshakeError: an assumed peer behind `sock` does not speak SMC.
    """
    loop = asyncio.get_running_loop()
    log.set_up()
    if limit <= 0:
        raise ValueError("Limit cannot be <= 0")
    tls = of_client(ssl, host, server_hostname, ssl_handshake_timeout, ssl_shutdown_timeout)
    delivery = Delivery(loop, streams.maker(loop, limit, server_side=False), tls)
    opening = _Opening(delivery, configured(config), host, all_errors)
    delivered = await opening.by(host, port, family, proto, flags, sock, local_addr, happy_eyeballs_delay, interleave)
    return streams.pair(loop, delivered)


async def create_smc_connection(
    protocol_factory: Callable[[], _ProtocolT],
    host: str | None = None,
    port: int | str | None = None,
    *,
    ssl: ssl.SSLContext | bool | None = None,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    sock: socket.socket | None = None,
    local_addr: tuple[str, int] | None = None,
    server_hostname: str | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
    happy_eyeballs_delay: float | None = None,
    interleave: int | None = None,
    all_errors: bool = False,
    config: SmcConfig | None = None,
) -> tuple[asyncio.Transport, _ProtocolT]:
    """Connect to `host` and `port`; the arguments are those of the event loop's `create_connection`.

    `smcfast.smc_info(transport)` tells the path and, when it is "tcp", the reason. All else is as `open_smc_connection` says.
    """
    loop = asyncio.get_running_loop()
    log.set_up()
    tls = of_client(ssl, host, server_hostname, ssl_handshake_timeout, ssl_shutdown_timeout)
    opening = _Opening(Delivery(loop, lambda _: protocol_factory(), tls), configured(config), host, all_errors)
    transport, protocol, _ = await opening.by(
        host, port, family, proto, flags, sock, local_addr, happy_eyeballs_delay, interleave
    )
    return transport, cast("_ProtocolT", protocol)


class _NoInvitation:
    """Stands where a socket is connected without discovery."""

    def close(self) -> None:
        """Nothing was opened."""


class _Opening:
    """One call of an entry point, past the arguments that only it has."""

    def __init__(self, delivery: Delivery, config: SmcConfig, host: str | None, all_errors: bool) -> None:
        if all_errors and sys.version_info < (3, 12):
            raise TypeError("open_smc_connection() got an unexpected keyword argument 'all_errors'")
        self._loop = delivery.loop
        self._delivery = delivery
        self._config = config
        self._host = host
        self._all_errors = all_errors
        self._clock = Clock.start(config)

    async def by(
        self,
        host: str | None,
        port: int | str | None,
        family: int,
        proto: int,
        flags: int,
        sock: socket.socket | None,
        local_addr: tuple[str, int] | None,
        delay: float | None,
        interleave: int | None,
    ) -> Delivered:
        """Connect as asyncio's arguments say."""
        if sock is not None:
            _check_sock(sock, host, port)
            return await self.over(sock)
        if host is None and port is None:
            raise ValueError("host and port was not specified and no sock specified")
        infos = await addresses.resolve(self._loop, host, port, family, proto, flags)
        local = None
        if local_addr is not None:
            local = await addresses.resolve(self._loop, *local_addr, family, proto, flags)
        if delay is not None and interleave is None:
            interleave = 1
        if interleave:
            infos = addresses.interleaved(infos, interleave)
        self._clock = Clock.start(self._config)
        return await self.to(infos, local, delay)

    async def to(
        self, infos: list[addresses.AddrInfo], local: list[addresses.AddrInfo] | None, delay: float | None
    ) -> Delivered:
        """Connect to the first of `infos` that answers, and take the best path to it."""
        known = fallback.beforehand(self._config)
        if known is not None:
            self._forbid(infos[0][4], known)
            sock, _, _ = await self._connect(infos, local, delay, _uninvited)
            return await self._tcp(sock, known)
        beside = None
        if option.is_wanted(self._config):
            await option.ready()
            beside = self._beside
        ordered = [kernel.instead(info) if self._is_kernels(info) else info for info in infos]
        try:
            sock, sockaddr, invitation = await self._connect(ordered, local, delay, self._invite, beside)
        except OSError as error:
            if ordered == infos or not kernel.has_broken(error, self._clock.elapsed_us() / 1e6):
                raise
            return await self._without_kernel(infos, local, delay, error)
        if not isinstance(invitation, Invitation):
            is_smc = kernel.is_smc(sock)
            return await (self._over_kernel(sock) if is_smc else self._tcp(sock, reason("kernel_smc")))
        self._clock = self._clock.restarted()
        try:
            found = await negotiate.as_client(self._clock, sock, invitation, self._config, self._host)
        except SmcHandshakeError as error:
            if local is not None:
                forget(sock)
            sock.close()
            return await self._again(sockaddr, infos, local, error.fallback)
        except BaseException:
            sock.close()
            raise
        return await self._finish(sock, found)

    async def _connect(
        self,
        infos: list[addresses.AddrInfo],
        local: list[addresses.AddrInfo] | None,
        delay: float | None,
        prepare: addresses.Prepare[addresses.ExtraT],
        beside: addresses.Beside[addresses.ExtraT] | None = None,
    ) -> tuple[socket.socket, tuple[Any, ...], addresses.ExtraT]:
        return await addresses.connect(
            self._loop,
            infos,
            local,
            delay,
            prepare,
            all_errors=self._all_errors,
            beside=beside,
            patience=option.PATIENCE,
        )

    def _is_kernels(self, info: addresses.AddrInfo) -> bool:
        return order.is_kernels_at(self._config, info[0], info[4])

    async def _over_kernel(self, sock: socket.socket) -> Delivered:
        """Take the connected socket of the kernel's SMC, which may run as TCP."""
        found = kernel.told(sock)
        if isinstance(found, Fallback):
            return await self._tcp(sock, found)
        return await self._over_socket(sock, found)

    async def _without_kernel(
        self,
        infos: list[addresses.AddrInfo],
        local: list[addresses.AddrInfo] | None,
        delay: float | None,
        error: OSError,
    ) -> Delivered:
        """The kernel's handshake has ended a connection that TCP can still have."""
        why = explained("handshake_failed", f"the kernel's SMC handshake broke off: {error}")
        self._forbid(infos[0][4], why)
        sock, _, _ = await self._connect(infos, local, delay, _uninvited)
        return await self._tcp(sock, why)

    async def over(self, sock: socket.socket) -> Delivered:
        """Take the user's connected `sock`."""
        sock.setblocking(False)
        if kernel.is_smc(sock):
            return await self._over_kernel(sock)
        why = fallback.beforehand(self._config)
        if why is not None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return await self._tcp(sock, why or reason("not_inet"))
        try:
            found = await self._negotiated(sock)
        except BaseException:
            sock.close()
            raise
        return await self._finish(sock, found)

    async def _negotiated(self, sock: socket.socket) -> Endpoint | Fallback:
        invitation = invited.take(sock)
        if invitation is None:
            return await negotiate.connected(self._clock, sock, self._config)
        return await negotiate.as_client(self._clock, sock, invitation, self._config, self._host)

    async def _again(
        self,
        sockaddr: tuple[Any, ...],
        infos: list[addresses.AddrInfo],
        local: list[addresses.AddrInfo] | None,
        why: Fallback,
    ) -> Delivered:
        """The stream of the first connection is spoiled: a new plain one to the same address takes its place."""
        self._forbid(sockaddr, why)
        same = [info for info in infos if info[4] == sockaddr]
        sock, _, _ = await self._connect(same, local, None, _uninvited)
        return await self._tcp(sock, why)

    async def _finish(self, sock: socket.socket, found: Endpoint | Fallback) -> Delivered:
        if isinstance(found, Fallback):
            return await self._tcp(sock, found)
        info = negotiate.describe(self._clock, found)
        return await self._delivery.over_ring(sock, found, info, self._clock.elapsed_us)

    async def _tcp(self, sock: socket.socket, why: Fallback) -> Delivered:
        try:
            info = fallback.settle(self._config, "client", log.peer(sock), why)
        except SmcFallbackError:
            sock.close()
            raise
        return await self._over_socket(sock, info)

    async def _over_socket(self, sock: socket.socket, info: SmcInfo) -> Delivered:
        return await self._delivery.over_socket(sock, info, self._clock.elapsed_us)

    def _invite(self, sock: socket.socket, sockaddr: tuple[Any, ...]) -> Invitation | _NoInvitation:
        if kernel.is_smc(sock) or not set(self._config.paths) - {"kernel"}:
            return _NoInvitation()
        return Invitation(sock, sockaddr, self._config)

    def _beside(self, invitation: Invitation | _NoInvitation) -> addresses.Prepare[Invitation | _NoInvitation] | None:
        """What else to try when a connect takes its time: the option may be why."""
        has_option = isinstance(invitation, Invitation) and invitation.mark.sent
        return self._invite_without_option if has_option else None

    def _invite_without_option(self, sock: socket.socket, sockaddr: tuple[Any, ...]) -> Invitation | _NoInvitation:
        return Invitation(sock, sockaddr, self._config, option_dropped=True)

    def _forbid(self, sockaddr: tuple[Any, ...], why: Fallback) -> None:
        """Known before the connect that TCP it would be: do not even connect if that is forbidden."""
        if self._config.fallback == "forbid":
            fallback.settle(self._config, "client", log.name(sockaddr), why)


def forget(sock: socket.socket) -> None:
    """Let the close of `sock` be a reset: its port, which the user has chosen, is free again at once."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))


def _uninvited(_sock: socket.socket, _sockaddr: tuple[Any, ...]) -> _NoInvitation:
    return _NoInvitation()


def _check_sock(sock: socket.socket, host: str | None, port: int | str | None) -> None:
    if isinstance(sock, ssl.SSLSocket):
        raise TypeError("Socket cannot be of type SSLSocket")
    if host is not None or port is not None:
        raise ValueError("host/port and sock can not be specified at the same time")
    if sock.type != socket.SOCK_STREAM:
        raise ValueError(f"A Stream Socket was expected, got {sock!r}")
