"""The rendezvous by directory, for containers that share no network namespace: names are files, all else is the same.

| name | type | meaning |
|---|---|---|
| ``smc-l<v>-<host>-<port>-<number>`` | datagram | smcfast serves a TCP listener of this address; only its existence counts |
| ``smc-c<v>-<host>-<port>-<host>-<port>`` | seqpacket | a client's TCP connection, own end first, can be met here |

``<v>`` is 4 or 6, all else hexadecimal; a wildcard is zeros, and the number is random: each server has its own. Neither end
can look up the other's socket, so what ties a caller to a connection is the name, who may write into the directory, and
the user that the kernel recorded.

A process that was killed leaves its names. Nobody is bound to them any more, which can be seen without disturbing those
that live; whoever comes across such a name removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import secrets
import socket
import stat
from typing import TYPE_CHECKING, Any, Final

from smcfast import netlink, rendezvous
from smcfast.log import logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from smcfast.netlink import Address

WAIT: Final = 0.2
"""Seconds that a server has to call: behind address translation, or in another network, it never will."""
SWEPT_EACH: Final = 2
"""Names beside those that are looked for, of which a look also finds out whether they are dead."""

_NAME = re.compile(r"smc-(l[46]-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+|c[46]-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+)")
_VERSIONS = {socket.AF_INET: 4, socket.AF_INET6: 6}
_PROBE = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


class UnusableError(Exception):
    """The directory is missing, or not safe; the text says why."""


class Held:
    """A socket and its name, until `close`."""

    def __init__(self, sock: socket.socket, path: str) -> None:
        self.sock = sock
        self._path = path
        self._pid = os.getpid()

    def close(self) -> None:
        """Take the name away, unless it is a parent's; no second call does any harm."""
        if self.sock.fileno() >= 0 and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self.sock.close()


class Folder:
    """A shared directory as the rendezvous sees it. Each use checks it anew: it may have been removed and made again."""

    def __init__(self, path: str, allowed: Collection[int]) -> None:
        """:param allowed: users whose names count; others are as if they were not there."""
        self._path = path
        self._allowed = allowed

    def announces(self, target: Address) -> bool:
        """Does a server of an allowed user say that it serves `target`, or every address at that port?

        :raises UnusableError: the directory cannot be used.
        :raises OSError: no descriptor is left.
        """
        anywhere = target._replace(host=bytes(len(target.host)))
        prefixes = (_listener_prefix(target), _listener_prefix(anywhere))
        with self._opened() as (fd, at):
            names = os.listdir(fd)
            _sweep(fd, at, random.sample(names, min(SWEPT_EACH, len(names))))
            return any(self._lives(fd, at, name) for name in names if name.startswith(prefixes))

    def announce(self, address: Address) -> Held:
        """Say that a listener of `address` is served; dead names are removed. Errors as for `announces`."""
        with self._opened() as (fd, at):
            _sweep(fd, at, os.listdir(fd))
            name = _listener_prefix(address) + secrets.token_hex(8)
            return self._held(rendezvous.claim(f"{at}{name}".encode()), at, name)

    def listen(self, client: Address, server: Address, backlog: int) -> Held:
        """The door of a client whose TCP connection will have these ends.

        :raises UnusableError: the directory cannot be used.
        :raises OSError: EADDRINUSE when somebody has the name, EMFILE and its kin.
        """
        name = _client_name(client, server)
        with self._opened() as (fd, at):
            try:
                sock = rendezvous.listen(f"{at}{name}".encode(), backlog)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                _sweep(fd, at, [name])
                sock = rendezvous.listen(f"{at}{name}".encode(), backlog)
            return self._held(sock, at, name)

    def call(self, client: Address, server: Address) -> socket.socket:
        """A connection to the door of the client whose TCP connection has these ends.

        :raises UnusableError: the directory cannot be used.
        :raises OSError: ENOENT or ECONNREFUSED when nobody listens, EACCES when its user does not want us, EAGAIN when the
            queue is full.
        """
        name = _client_name(client, server)
        with self._opened() as (_, at):
            conn = rendezvous.call(f"{at}{name}".encode())
        # A link, or a door that was renamed, would lead to the client of another connection.
        if os.path.basename(conn.getpeername()) != name:
            conn.close()
            raise ConnectionRefusedError(f"{name} is the name of another door")
        return conn

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[int, str]]:
        """The directory's descriptor, and a short path through it: a socket's path has 107 bytes at most."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in netlink.EXHAUSTED:
                raise
            raise UnusableError(f"{self._path}: {error.strerror}") from error
        try:
            flaw = _flaw(os.fstat(fd), self._allowed)
            if flaw is not None:
                raise UnusableError(f"{self._path}: {flaw}")
            yield fd, f"/proc/self/fd/{fd}/"
        finally:
            os.close(fd)

    def _held(self, sock: socket.socket, at: str, name: str) -> Held:
        """Let in whoever is allowed; their users are asked for again when they call."""
        held = Held(sock, os.path.join(self._path, name))
        try:
            os.chmod(f"{at}{name}", 0o600 if set(self._allowed) <= {os.geteuid()} else 0o666)
        except BaseException:
            held.close()
            raise
        return held

    def _lives(self, fd: int, at: str, name: str) -> bool:
        """Is the announcement `name` that of a running server of an allowed user?"""
        try:
            owner = os.stat(name, dir_fd=fd, follow_symlinks=False).st_uid
        except OSError:
            return False
        if owner not in self._allowed:
            return False
        lives = _is_bound(at, name)
        if lives is False:
            _sweep(fd, at, [name])
        return bool(lives)


class Announcement:
    """A listening socket's names in a folder, until `close`. Never raises: without them clients use TCP."""

    def __init__(self, folder: Folder, listener: socket.socket) -> None:
        """:param listener: is bound."""
        self._held: list[Held] = []
        try:
            for address in _served(listener):
                self._held.append(folder.announce(address))
        except (OSError, UnusableError) as error:
            logger.warning("a listener is not announced in the shared directory, its clients use TCP: %s", error)
            self.close()

    def close(self) -> None:
        """Take the names away."""
        for held in self._held:
            held.close()
        self._held.clear()


def source(sock: socket.socket, sockaddr: tuple[Any, ...]) -> Address:
    """The address that `sock` will have once it is connected to `sockaddr`: from here on it is bound to it.

    :raises UnusableError: no port is left.
    :raises OSError: there is no way there.
    """
    own = sock.getsockname()
    if own[1] and not netlink.address(own).is_any:
        return netlink.address(own)
    with socket.socket(sock.family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        probe.connect(sockaddr)  # which sends nothing
        way = probe.getsockname()
    if not own[1]:
        try:
            sock.bind((way[0], 0, *way[2:]))
        except OSError as error:
            raise UnusableError(f"no local port is left that could be in a name: {error.strerror}") from error
    return netlink.address(way)._replace(port=sock.getsockname()[1])


def _served(listener: socket.socket) -> list[Address]:
    """The address of a listener, and for a wildcard of both families that of IPv4 as well."""
    own = netlink.address(listener.getsockname())
    both = (
        own.family == socket.AF_INET6
        and own.is_any
        and not listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    )
    return [own, own._replace(family=socket.AF_INET, host=bytes(4))] if both else [own]


def _listener_prefix(address: Address) -> str:
    return f"smc-l{_VERSIONS[socket.AddressFamily(address.family)]}-{address.host.hex()}-{address.port:x}-"


def _client_name(client: Address, server: Address) -> str:
    ends = "-".join(f"{end.host.hex()}-{end.port:x}" for end in (client, server))
    return f"smc-c{_VERSIONS[socket.AddressFamily(client.family)]}-{ends}"


def _flaw(status: os.stat_result, allowed: Collection[int]) -> str | None:
    """What makes a directory useless: somebody who is neither root nor allowed could take names away."""
    if status.st_uid not in {0, *allowed}:
        return f"it belongs to user {status.st_uid}, who is neither root nor allowed"
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return "everybody may remove names from it: give it mode 0700, or the sticky bit"
    return None


def _is_bound(at: str, name: str) -> bool | None:
    """Is a socket bound to `name`? None when that cannot be told. Who listens there does not notice."""
    with socket.socket(socket.AF_UNIX, _PROBE) as probe:
        try:
            probe.connect(f"{at}{name}")
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            return True if error.errno == errno.EPROTOTYPE else None
        return True


def _sweep(fd: int, at: str, names: Iterable[str]) -> None:
    """Remove what killed processes have left; what cannot be removed stays."""
    for name in names:
        if _NAME.fullmatch(name):
            with contextlib.suppress(OSError):
                if (
                    stat.S_ISSOCK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
                    and _is_bound(at, name) is False
                ):
                    os.unlink(name, dir_fd=fd)
