"""The ends of a proxy's forwards, as users write them: ``tcp:host:port``, ``unix:path`` and ``smc:host:port``."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import stat
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from smcfast import log
from smcfast.connect import open_smc_connection
from smcfast.server import start_smc_server

if TYPE_CHECKING:
    from collections.abc import Callable

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_LIMIT: Final = 64 * 1024
"""asyncio's readers hold up to twice as much before they read no more."""
_HAPPY_EYEBALLS: Final = 0.25
"""Seconds after which the next address is tried beside the present one: RFC 8305. uvloop has no such thing for tcp: ends."""
_BETWEEN: Final = re.compile(r"=(?=(?:tcp|unix|smc):)")
_PATH_MAX: Final = 107
"""Bytes of a unix socket's path, the kernel's struct without the NUL at its end."""


class End(NamedTuple):
    """One end: where a forward listens, or connects to."""

    kind: str
    """ "tcp", "unix" or "smc"."""
    host: str | None
    """None is every address, for an end that listens."""
    port: int
    path: str
    text: str

    def __str__(self) -> str:
        return self.text


def parse_pair(text: str) -> tuple[End, End]:
    """The ends of a forward ``listen=connect``.

    :raises ValueError: it is none; the message says what is wrong.
    """
    parts = _BETWEEN.split(text, maxsplit=1)
    if len(parts) != 2:
        raise ValueError(f"{text!r} is no LISTEN=CONNECT, as in tcp:127.0.0.1:6379=smc:10.0.0.2:7379")
    listen, connect = map(parse, parts)
    if "smc" not in (listen.kind, connect.kind):
        raise ValueError(f"{text!r}: neither end is smc:")
    if connect.kind != "unix" and (connect.host is None or not connect.port):
        raise ValueError(f"{text!r}: {connect} can be listened to, but not connected to")
    return listen, connect


def parse(text: str) -> End:
    """The end written as `text`.

    :raises ValueError: it is none; the message says what is wrong.
    """
    kind, _, rest = text.partition(":")
    if kind == "unix":
        if not 1 <= len(os.fsencode(rest)) <= _PATH_MAX or "\0" in rest:
            raise ValueError(f"{text!r}: the path must have 1 to {_PATH_MAX} bytes")
        return End(kind, None, 0, rest, text)
    if kind not in ("tcp", "smc"):
        raise ValueError(f"{text!r} is none of tcp:HOST:PORT, unix:PATH, smc:HOST:PORT")
    host, _, port = rest.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{text!r}: the port must be 0..65535")
    return End(kind, _host(text, host), int(port), "", text)


def _host(text: str, host: str) -> str | None:
    if host == "*":
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"{text!r}: {host!r} is no name of a host") from None
    if not host:
        raise ValueError(f"{text!r} has no host; * is every address of this one")
    return host


class Listener:
    """A listening end."""

    def __init__(
        self, server: asyncio.AbstractServer, names: list[str], file: tuple[str, tuple[int, int]] | None
    ) -> None:
        """:param file: the path of a unix socket, and its device and inode."""
        self._server = server
        self._file = file
        self.names = names
        """Where it listens, with the ports that the system has chosen."""

    def close(self) -> None:
        """Accept nobody any more; a unix socket's file goes, unless it is another's by now."""
        self._server.close()
        if self._file is not None:
            path, identity = self._file
            with contextlib.suppress(OSError):
                if _identity(path) == identity:
                    os.unlink(path)


async def listen(end: End, accept: Callable[..., None], mode: int) -> Listener:
    """Listen at `end`, and hand a reader and a writer of each connection to `accept`.

    :param mode: of a unix socket's file.
    :raises OSError: nobody can listen there.
    """
    if end.kind == "unix":
        sock = _bound(end.path, mode)
        file = end.path, _identity(end.path)
        return Listener(await asyncio.start_unix_server(accept, sock=sock, limit=_LIMIT), [end.path], file)
    server: asyncio.Server | asyncio.AbstractServer
    if end.kind == "tcp":
        server = await asyncio.start_server(accept, end.host, end.port, limit=_LIMIT)
    else:
        server = await start_smc_server(accept, end.host, end.port, limit=_LIMIT)
    return Listener(server, [log.name(each.getsockname()) for each in server.sockets], None)


async def connect(end: End) -> Streams:
    """A connection to `end`.

    :raises OSError: there is none.
    """
    if end.kind == "unix":
        return await asyncio.open_unix_connection(end.path, limit=_LIMIT)
    if end.kind == "tcp":
        return await asyncio.open_connection(end.host, end.port, limit=_LIMIT)
    return await open_smc_connection(end.host, end.port, limit=_LIMIT, happy_eyeballs_delay=_HAPPY_EYEBALLS)


def _bound(path: str, mode: int) -> socket.socket:
    """A socket whose file has `mode` from its first moment on; what a dead process has left there makes room."""
    sock = socket.socket(socket.AF_UNIX)
    umask = os.umask(0o777 & ~mode)
    try:
        try:
            sock.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_abandoned(path):
                raise
            os.unlink(path)
            sock.bind(path)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(umask)
    return sock


def _is_abandoned(path: str) -> bool:
    """Is this the file of a socket where nobody listens any more?"""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
