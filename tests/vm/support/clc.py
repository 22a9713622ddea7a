"""The CLC messages of a TCP connection, as they pass the cable."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from support.capture import Capture, capturing
from vm.support.hosts import A

if TYPE_CHECKING:
    from collections.abc import Iterator

PROPOSAL, ACCEPT, CONFIRM, DECLINE = 1, 2, 3, 4
_EYECATCHERS: Final = (bytes.fromhex("e2d4c3d9"), bytes.fromhex("e2d4c3c4"))
_HEADER: Final = 8


class Message(NamedTuple):
    """One message."""

    is_servers: bool
    data: bytes

    @property
    def kind(self) -> int:
        return self.data[4]

    @property
    def version(self) -> int:
        return self.data[7] >> 4

    @property
    def path_mtu(self) -> int:
        """The code in an Accept or a Confirm of SMC-R."""
        return self.data[50] & 15

    @property
    def diagnosis(self) -> int:
        """The code in a Decline."""
        return int.from_bytes(self.data[16:20])

    @property
    def is_out_of_sync(self) -> bool:
        """The bit of a Decline that says so; the same bit means first contact in an Accept or a Confirm."""
        return bool(self.data[7] & 8)


class Cable:
    """Listens to one port of host a's interface."""

    def __init__(self, capture: Capture, port: int) -> None:
        self._capture = capture
        self._port = port

    def messages(self) -> list[Message]:
        """What has passed since the last call, of one connection."""
        found: list[Message] = []
        streams = {True: b"", False: b""}
        for segment in self._capture.taken():
            is_servers = segment.source == self._port
            data = streams[is_servers] + segment.data
            while data[:4] in _EYECATCHERS and len(data) >= _HEADER:
                length = int.from_bytes(data[5:7])
                if len(data) < length:
                    break
                found.append(Message(is_servers, data[:length]))
                data = data[length:]
            streams[is_servers] = data
        return found


@contextlib.contextmanager
def cable(port: int) -> Iterator[Cable]:
    """The messages to and from `port`, from now on."""
    with capturing(port, A.interface) as capture:
        yield Cable(capture, port)
