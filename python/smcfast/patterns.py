"""Patterns of ``assume``: destinations and listeners that are known to speak SMC.

A pattern is ``host:port``. The host is a name as the caller writes it, an address, a network (``10.0.0.0/8``) or
``*``; IPv6 stands in brackets (``[::1]:5000``, ``[fd00::/8]:5000``); the port is a number or ``*``.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Pattern(NamedTuple):
    """One parsed pattern; None stands for ``*``."""

    name: str | None
    network: Network | None
    port: int | None

    def matches(self, host: str | None, address: str, port: int) -> bool:
        """Does it cover `address` (numeric) and `port`, which the caller called `host`?"""
        if self.port is not None and self.port != port:
            return False
        if self.name is not None:
            return host is not None and host.casefold() == self.name
        return self.network is None or plain_address(address) in self.network


def plain_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The numeric `address` without its zone; an IPv4-mapped one as IPv4."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return parsed if mapped is None else mapped


def parse(text: str) -> Pattern:
    """The pattern written as `text`.

    :raises ValueError: it is none; the message says what is wrong.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} has no port (host:port, [v6]:port, *:port, 10.0.0.0/8:port)")
    return Pattern(*_parse_host(text, host), _parse_port(text, port))


def _parse_port(text: str, port: str) -> int | None:
    if port == "*":
        return None
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(f"{text!r}: the port must be * or 1..65535")
    return int(port)


def _parse_host(text: str, host: str) -> tuple[str | None, Network | None]:
    if host == "*":
        return None, None
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets")
    try:
        return None, ipaddress.ip_network(host)
    except ValueError as error:
        if bracketed or "/" in host:
            raise ValueError(f"{text!r}: {error}") from None
        return host.casefold(), None


def any_matches(patterns: Iterable[Pattern], host: str | None, address: str, port: int) -> bool:
    """Does one of `patterns` cover this end?"""
    return any(pattern.matches(host, address, port) for pattern in patterns)
