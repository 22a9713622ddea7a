"""Netlink messages: a question to the kernel and its answers, which are all there when the question has been sent."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROUTE: Final = 0
SOCK_DIAG: Final = 4
GENERIC: Final = 16
"""Protocols, for `ask`."""

_AF_NETLINK: Final = 16
_ERROR: Final = 2
_DONE: Final = 3
_REQUEST: Final = 0x1
_MULTI: Final = 0x2
_ACKNOWLEDGE: Final = 0x4
_INTERRUPTED: Final = 0x10
_DUMP: Final = 0x300
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_TYPE_MASK: Final = 0x3FFF
"""An attribute's type without its marks (nested, byte order)."""
_RECEIVED_MAX: Final = 1 << 17
"""Bytes of one answer; the kernel writes at most 32 KiB."""
_TRIES: Final = 5
_sequences = itertools.count(1)


class Malformed(OSError):
    """An answer is shorter than it says, or than it must be."""


def ask(protocol: int, kind: int, body: bytes, *, dump: bool = False) -> list[bytes]:
    """The bodies of the kernel's answers, none to a command; of a `dump`, which changes meanwhile interrupt, it is asked again.

    :raises OSError: the kernel or a sandbox refuses, with its errno; `Malformed`.
    """
    found: list[bytes] = []
    for _ in range(_TRIES):
        answers = _Answers(protocol, kind, body, dump)
        found = list(answers)
        if not answers.interrupted:
            break
    return found


def each(protocol: int, kind: int, body: bytes) -> Iterator[bytes]:
    """The answers of a dump, one after the other: the kernel is not asked for more than are taken.

    :raises OSError: as `ask`.
    """
    return iter(_Answers(protocol, kind, body, True))


class _Answers:
    """One question, on a socket of its own."""

    def __init__(self, protocol: int, kind: int, body: bytes, dump: bool) -> None:
        self.interrupted = False
        self._protocol = protocol
        self._sequence = next(_sequences) & 0xFFFFFFFF
        flags = _REQUEST | (_DUMP if dump else _ACKNOWLEDGE)
        self._question = _HEADER.pack(_HEADER.size + len(body), kind, flags, self._sequence, 0) + body

    def __iter__(self) -> Iterator[bytes]:
        with socket.socket(_AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, self._protocol) as sock:
            sock.sendto(self._question, (0, 0))
            while True:
                data, sender = sock.recvfrom(_RECEIVED_MAX)
                if sender[0] != 0:  # Not from the kernel.
                    continue
                for kind, flags, body in self._messages(data):
                    if kind in (_DONE, _ERROR):
                        _check(body, may_be_none=kind == _DONE)
                        return
                    yield body
                    if not flags & _MULTI:
                        return

    def _messages(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Type, flags and body of the answers to this question in what was received."""
        at = 0
        while at < len(data) or not data:
            if len(data) - at < _HEADER.size:
                raise Malformed("a netlink message is cut off")
            length, kind, flags, sequence, _ = _HEADER.unpack_from(data, at)
            if not _HEADER.size <= length <= len(data) - at:
                raise Malformed("a netlink message has a wrong length")
            if sequence == self._sequence:
                self.interrupted |= bool(flags & _INTERRUPTED)
                yield kind, flags, data[at + _HEADER.size : at + length]
            at += _aligned(length)


def _check(body: bytes, may_be_none: bool) -> None:
    """Look at the status that ends the answers.

    :raises OSError: it is an error.
    """
    if len(body) < 4 and not (may_be_none and not body):
        raise Malformed("a netlink status is cut off")
    error = -struct.unpack_from("=i", body)[0] if body else 0
    if error > 0:
        raise OSError(error, os.strerror(error))


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """The attributes that begin at `offset`; of one that is there twice the last.

    :raises Malformed: one is longer than the message.
    """
    found = {}
    while len(data) - offset >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if not _ATTRIBUTE.size <= length <= len(data) - offset:
            raise Malformed("a netlink attribute has a wrong length")
        found[kind & _TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += _aligned(length)
    return found


def packed(values: Mapping[int, bytes] | Iterable[tuple[int, bytes]]) -> bytes:
    """Attributes as a question has them."""
    parts = []
    for kind, value in dict(values).items():
        parts.append(_ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value)
        parts.append(bytes(-len(value) % 4))
    return b"".join(parts)


def number(data: bytes | None) -> int:
    """An attribute that is a number of this machine's byte order; 0 for one that is not there.

    :raises Malformed: it has no length of a number.
    """
    if data is None:
        return 0
    if len(data) not in (1, 2, 4, 8):
        raise Malformed("a netlink attribute is no number")
    return int.from_bytes(data, sys.byteorder)


def text(data: bytes | None) -> str:
    """An attribute that is a C string."""
    return (data or b"").split(b"\0", 1)[0].decode(errors="surrogateescape")
