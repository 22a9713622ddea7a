"""`open_smc_connection`: asyncio's `open_connection` over the fastest path that both ends share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from smcfast import addresses, counts, fallback, log, negotiate, streams
from smcfast.config import configured
from smcfast.discovery import Invitation
from smcfast.errors import Fallback, SmcFallbackError, SmcHandshakeError
from smcfast.negotiate import Clock
from smcfast.reasons import reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from smcfast._core import Endpoint
    from smcfast.config import SmcConfig

DEFAULT_LIMIT = 2**16
_Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to `host` and `port`; the arguments are those of `asyncio.open_connection`.

    The path and, when it is "tcp", the reason are in ``writer.get_extra_info("smc")``, an `SmcInfo`.

    :param ssl: TLS runs over TCP: the path is "tcp" with reason "tls".
    :param sock: a connected stream socket; discovery is skipped unless ``config.assume`` names its peer.
    :param all_errors: raise an `ExceptionGroup` of what went wrong with each address; from Python 3.12 on.
    :param config: `SmcConfig`; None takes ``SMCFAST_*`` variables and defaults.
    :raises OSError: as asyncio, when no address can be connected.
    :raises SmcFallbackError: the path would be "tcp" and ``config.fallback`` is "forbid".
    :raises SmcHandshakeError: an assumed peer behind `sock` does not speak SMC.
    """
    loop = asyncio.get_running_loop()
    log.set_up()
    config = configured(config)
    _check_version_and_limit(all_errors, limit)
    _check_tls(ssl, host, server_hostname, ssl_handshake_timeout, ssl_shutdown_timeout)
    if sock is not None:
        _check_sock(sock, host, port)
    elif host is None and port is None:
        raise ValueError("host and port was not specified and no sock specified")
    tls = _Tls(
        ssl,
        server_hostname if server_hostname is not None or not ssl else host,
        ssl_handshake_timeout,
        ssl_shutdown_timeout,
    )
    if sock is not None:
        return await _Opening(loop, config, limit, tls, host).over(sock)
    infos = await addresses.resolve(loop, host, port, family, proto, flags)
    local = None if local_addr is None else await addresses.resolve(loop, *local_addr, family, proto, flags)
    if happy_eyeballs_delay is not None and interleave is None:
        interleave = 1
    if interleave:
        infos = addresses.interleaved(infos, interleave)
    return await _Opening(loop, config, limit, tls, host, all_errors).to(infos, local, happy_eyeballs_delay)


class _Tls:
    """What TLS needs, if it was asked for."""

    def __init__(
        self,
        ssl: ssl.SSLContext | bool | None,
        hostname: str | None,
        handshake_timeout: float | None,
        shutdown_timeout: float | None,
    ):
        self.ssl = ssl
        self.hostname = hostname
        self.handshake_timeout = handshake_timeout
        self.shutdown_timeout = shutdown_timeout


class _NoInvitation:
    """Stands where a socket is connected without discovery."""

    def close(self) -> None:
        """Nothing was opened."""


class _Opening:
    """One call of `open_smc_connection`, past its arguments."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: SmcConfig,
        limit: int,
        tls: _Tls,
        host: str | None,
        all_errors: bool = False,
    ) -> None:
        self._loop = loop
        self._config = config
        self._limit = limit
        self._tls = tls
        self._host = host
        self._all_errors = all_errors
        self._clock = Clock.start(loop, config)

    async def to(
        self, infos: list[addresses.AddrInfo], local: list[addresses.AddrInfo] | None, delay: float | None
    ) -> _Streams:
        """Connect to the first of `infos` that answers, and take the best path to it."""
        known = fallback.beforehand(self._config, bool(self._tls.ssl))
        if known is not None:
            self._forbid(infos[0][4], known)
            sock, _, _ = await self._connect(infos, local, delay, _uninvited)
            return await self._tcp(sock, known)
        sock, sockaddr, invitation = await self._connect(infos, local, delay, self._invite)
        self._clock = self._clock.restarted()
        try:
            found = await negotiate.as_client(self._clock, sock, invitation, self._config, self._host)
        except SmcHandshakeError as error:
            if local is not None:
                _forget(sock)
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
        prepare: Callable[[socket.socket, tuple[Any, ...]], addresses.ExtraT],
    ) -> tuple[socket.socket, tuple[Any, ...], addresses.ExtraT]:
        return await addresses.connect(self._loop, infos, local, delay, prepare, all_errors=self._all_errors)

    async def over(self, sock: socket.socket) -> _Streams:
        """Take the user's connected `sock`."""
        sock.setblocking(False)
        why = fallback.beforehand(self._config, bool(self._tls.ssl))
        if why is not None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return await self._tcp(sock, why or reason("not_inet"))
        try:
            found = await negotiate.assuming(self._clock, sock, self._config, None, reason("sock_given"))
        except BaseException:
            sock.close()
            raise
        return await self._finish(sock, found)

    async def _again(
        self,
        sockaddr: tuple[Any, ...],
        infos: list[addresses.AddrInfo],
        local: list[addresses.AddrInfo] | None,
        why: Fallback,
    ) -> _Streams:
        """The stream of the first connection is spoiled: a new plain one to the same address takes its place."""
        self._forbid(sockaddr, why)
        same = [info for info in infos if info[4] == sockaddr]
        sock, _, _ = await self._connect(same, local, None, _uninvited)
        return await self._tcp(sock, why)

    async def _finish(self, sock: socket.socket, found: Endpoint | Fallback) -> _Streams:
        if isinstance(found, Fallback):
            return await self._tcp(sock, found)
        try:
            info = negotiate.describe(self._clock, found)
            pair = streams.ring_streams(self._loop, sock, found, info, limit=self._limit)
        except BaseException:
            sock.close()
            raise
        counts.count_connection(info.path)
        log.established("client", sock, info)
        return pair

    async def _tcp(self, sock: socket.socket, why: Fallback) -> _Streams:
        try:
            info = fallback.settle(self._config, "client", log.peer(sock), why)
        except SmcFallbackError:
            sock.close()
            raise
        return await streams.tcp_streams(
            self._loop,
            sock,
            info,
            self._clock.elapsed_us,
            limit=self._limit,
            ssl=self._tls.ssl or None,
            server_hostname=self._tls.hostname,
            ssl_handshake_timeout=self._tls.handshake_timeout,
            ssl_shutdown_timeout=self._tls.shutdown_timeout,
        )

    def _invite(self, sock: socket.socket, sockaddr: tuple[Any, ...]) -> Invitation:
        return Invitation(sock, sockaddr, self._config)

    def _forbid(self, sockaddr: tuple[Any, ...], why: Fallback) -> None:
        """Known before the connect that TCP it would be: do not even connect if that is forbidden."""
        if self._config.fallback == "forbid":
            fallback.settle(self._config, "client", log.name(sockaddr), why)


def _forget(sock: socket.socket) -> None:
    """Let the close of `sock` be a reset: its port, which the user has chosen, is free again at once."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))


def _uninvited(_sock: socket.socket, _sockaddr: tuple[Any, ...]) -> _NoInvitation:
    return _NoInvitation()


def _check_version_and_limit(all_errors: bool, limit: int) -> None:
    if all_errors and sys.version_info < (3, 12):
        raise TypeError("open_smc_connection() got an unexpected keyword argument 'all_errors'")
    if limit <= 0:
        raise ValueError("Limit cannot be <= 0")


def _check_tls(
    ssl: ssl.SSLContext | bool | None,
    host: str | None,
    hostname: str | None,
    handshake_timeout: float | None,
    shutdown_timeout: float | None,
) -> None:
    if not ssl:
        for name, value in (
            ("server_hostname", hostname),
            ("ssl_handshake_timeout", handshake_timeout),
            ("ssl_shutdown_timeout", shutdown_timeout),
        ):
            if value is not None:
                raise ValueError(f"{name} is only meaningful with ssl")
    elif hostname is None and not host:
        raise ValueError("You must set server_hostname when using ssl without a host")


def _check_sock(sock: socket.socket, host: str | None, port: int | str | None) -> None:
    if isinstance(sock, ssl.SSLSocket):
        raise TypeError("Socket cannot be of type SSLSocket")
    if host is not None or port is not None:
        raise ValueError("host/port and sock can not be specified at the same time")
    if sock.type != socket.SOCK_STREAM:
        raise ValueError(f"A Stream Socket was expected, got {sock!r}")
