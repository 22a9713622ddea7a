"""Addresses for tests: never a fixed port."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Iterator, Sequence

HOSTS = ("127.0.0.1", "::1", "localhost")


def why_unusable(host: str) -> str | None:
    """Why nothing can be bound to ``host`` here, or None."""
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(address)
    except OSError as error:
        return f"nothing can be bound to {host} here: {error}"
    return None


def port_of(sockets: Sequence[socket.socket | TransportSocket]) -> int:
    """The port of a server's first socket, which is the one that a client tries first."""
    port: int = sockets[0].getsockname()[1]
    return port


@contextlib.contextmanager
def listening(host: str) -> Iterator[tuple[list[socket.socket], int]]:
    """Listening sockets on every address of ``host``, all on one free port, and the port."""
    for _ in range(20):  # the port that was free for the first family may be taken for the second
        with contextlib.ExitStack() as stack:
            try:
                sockets = _bind(stack, host)
            except OSError:
                continue
            for each in sockets:
                each.listen()
            yield sockets, port_of(sockets)
            return
    raise OSError(f"no port is free on all addresses of {host}")


@contextlib.contextmanager
def refusing(host: str) -> Iterator[int]:
    """A port of ``host`` that refuses connections: bound, never listening. Who listens there as servers do can have it."""
    with contextlib.ExitStack() as stack:
        yield port_of(_bind(stack, host))


@contextlib.contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """An address that answers no SYN: its listener's queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()


def _bind(stack: contextlib.ExitStack, host: str) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        each = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        port = port_of(sockets) if sockets else 0
        each.bind((address[0], port, *address[2:]))
        sockets.append(each)
    return sockets
