"""Addresses as anyio writes them."""

from __future__ import annotations

import socket


def short(sockaddr: tuple[str, int] | tuple[str, int, int, int]) -> tuple[str, int]:
    """Host and port. The interface of a link-local IPv6 address is a part of the host, as its name."""
    host, port = sockaddr[:2]
    scope = sockaddr[3] if len(sockaddr) > 3 else 0
    if not scope or "%" in host:
        return host, port
    return f"{host}%{socket.if_indextoname(scope)}", port
