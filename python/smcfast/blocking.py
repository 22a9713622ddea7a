"""`create_connection` and `create_server`: the standard library's blocking sockets over shared memory, where both ends share it."""

from __future__ import annotations

import socket
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from smcfast import fallback, log, negotiate, steps
from smcfast.config import configured
from smcfast.connect import forget
from smcfast.discovery import Invitation
from smcfast.errors import Fallback, SmcError, SmcFallbackError, SmcHandshakeError
from smcfast.listener import SmcListener
from smcfast.narrowed import beforehand, narrowed, with_cause
from smcfast.negotiate import Clock
from smcfast.plainsocket import PlainSocket
from smcfast.ringsocket import RingSocket

if TYPE_CHECKING:
    from smcfast._core import Endpoint
    from smcfast.config import SmcConfig

SmcSocket: TypeAlias = "RingSocket | PlainSocket"
"""What both ends of a blocking connection are."""
# What `socket.create_connection` has as its default: programs hand it on.
_DEFAULT: Any = socket._GLOBAL_DEFAULT_TIMEOUT  # type: ignore[attr-defined]
BACKLOG = 128
"""Connections that may wait for `accept` unless `backlog` says otherwise."""
_LEAST = 0.1
"""Seconds that a set-up has at least, as in `SmcConfig.handshake_timeout`."""


def create_connection(
    address: tuple[str | None, int | str | None],
    timeout: float | None = _DEFAULT,
    source_address: tuple[str, int] | None = None,
    *,
    all_errors: bool = False,
    config: SmcConfig | None = None,
) -> SmcSocket:
    """Connect to `address`; the arguments are those of `socket.create_connection`.

    The path and, when it is "tcp", the reason are in `smc_info` of the socket that is returned. On "tcp" it is a
    `socket.socket`, else it has the methods of one.

    :param timeout: seconds for the connect, for discovery and handshake together (less than ``config.handshake_timeout``, at
        least 0.1), and from then on for each call.
    :param config: `SmcConfig`; None takes ``SMCFAST_*`` variables and defaults.
    :raises OSError: as `socket.create_connection`; an `ExceptionGroup` with `all_errors`.
    :raises SmcFallbackError: the path would be "tcp" and ``config.fallback`` is "forbid".
    """
    log.set_up()
    asked = configured(config)
    host, port = address
    errors: list[OSError] = []
    for info in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        try:
            return _Opening(asked, host, timeout, source_address).to(info)
        except SmcError:
            raise
        except OSError as error:
            if not all_errors:
                errors.clear()
            errors.append(error)
    if not errors:
        raise OSError("getaddrinfo returns an empty list")
    try:
        if all_errors:
            raise ExceptionGroup("create_connection failed", errors)
        raise errors[0]
    finally:
        errors.clear()  # An exception remembers this frame.


class _Opening:
    """One address of one call."""

    def __init__(
        self, asked: SmcConfig, host: str | None, timeout: float | None, source_address: tuple[str, int] | None
    ) -> None:
        self._asked = asked
        self._config = narrowed(asked)
        self._host = host
        self._timeout = socket.getdefaulttimeout() if timeout is _DEFAULT else timeout
        self._source = source_address
        now = monotonic()
        self._clock = Clock(_bounded(asked.handshake_timeout, self._timeout), now, now)

    def to(self, info: tuple[Any, ...]) -> SmcSocket:
        """Connect, and take the best path."""
        known = beforehand(self._asked)
        if known is not None:
            if self._config.fallback == "forbid":
                fallback.settle(self._config, "client", log.name(info[4]), known)
            return self._plain(self._connected(info), known)
        tcp = self._socket(info)
        try:
            invitation = Invitation(tcp, info[4], self._config)
            try:
                tcp.connect(info[4])
            except BaseException:
                invitation.close()
                raise
            self._clock = self._clock.restarted()
            tcp.setblocking(False)
            found = steps.run(lambda: negotiate.as_client(self._clock, tcp, invitation, self._config, self._host))
        except SmcHandshakeError as error:
            _reset(tcp, self._source)
            return self._again(info, error.fallback)
        except BaseException:
            tcp.close()
            raise
        if isinstance(found, Fallback):
            return self._plain(tcp, with_cause(found, tcp, self._asked))
        return self._ring(tcp, found)

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, proto = info[:3]
        tcp = socket.socket(family, kind, proto)
        try:
            tcp.settimeout(self._timeout)
            if self._source is not None:
                tcp.bind(self._source)
        except BaseException:
            tcp.close()
            raise
        return tcp

    def _connected(self, info: tuple[Any, ...]) -> socket.socket:
        tcp = self._socket(info)
        try:
            tcp.connect(info[4])
        except BaseException:
            tcp.close()
            raise
        return tcp

    def _again(self, info: tuple[Any, ...], why: Fallback) -> SmcSocket:
        """The stream of the first connection is spoiled: a plain one takes its place."""
        if self._config.fallback == "forbid":
            fallback.settle(self._config, "client", log.name(info[4]), why)
        return self._plain(self._connected(info), why)

    def _plain(self, tcp: socket.socket, why: Fallback) -> PlainSocket:
        try:
            told = fallback.settle(self._config, "client", log.peer(tcp), why)
        except SmcFallbackError:
            tcp.close()
            raise
        return PlainSocket.over(tcp, negotiate.timed(self._clock, told), "client", self._timeout)

    def _ring(self, tcp: socket.socket, endpoint: Endpoint) -> RingSocket:
        info = negotiate.describe(self._clock, endpoint)
        return RingSocket.over(tcp, endpoint, info, "client", self._timeout)


def _bounded(handshake_timeout: float, timeout: float | None) -> float:
    return handshake_timeout if timeout is None else min(handshake_timeout, max(timeout, _LEAST))


def _reset(tcp: socket.socket, source: object) -> None:
    """Close; a port that the user has chosen must be free again at once."""
    if source is not None:
        forget(tcp)
    tcp.close()


def create_server(
    address: tuple[str, int],
    *,
    family: int = socket.AF_INET,
    backlog: int | None = None,
    reuse_port: bool = False,
    dualstack_ipv6: bool = False,
    config: SmcConfig | None = None,
) -> SmcListener:
    """Listen at `address`; the arguments are those of `socket.create_server`.

    Clients of every kind meet it, blocking ones and those of `open_smc_connection`, and plain TCP ones too.

    :param backlog: connections that may wait for `accept`; None is 128.
    :param config: `SmcConfig`; None takes ``SMCFAST_*`` variables and defaults.
    :raises OSError: the address cannot be bound.
    :raises SmcFallbackError: no connection could be anything but TCP, and ``config.fallback`` is "forbid".
    """
    log.set_up()
    asked = configured(config)
    known = beforehand(asked)
    if known is not None and asked.fallback == "forbid":
        raise SmcFallbackError(known)
    sock = _bound(address, family, reuse_port, dualstack_ipv6)
    return SmcListener(sock, BACKLOG if backlog is None else max(backlog, 1), asked)


def _bound(address: tuple[str, int], family: int, reuse_port: bool, dualstack_ipv6: bool) -> socket.socket:
    """As `socket.create_server` binds; it does not listen yet, so that it can have a name before."""
    if dualstack_ipv6 and not socket.has_dualstack_ipv6():
        raise ValueError("dualstack_ipv6 not supported on this platform")
    if dualstack_ipv6 and family != socket.AF_INET6:
        raise ValueError("dualstack_ipv6 requires AF_INET6 family")
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dualstack_ipv6)
        try:
            sock.bind(address)
        except OSError as error:
            text = f"{error.strerror} (while attempting to bind on address {address!r})"
            raise OSError(error.errno, text) from None
    except BaseException:
        sock.close()
        raise
    return sock
