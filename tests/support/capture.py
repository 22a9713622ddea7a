"""The TCP segments that pass an interface, as they are on the wire, and SYNs made by hand."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10
OPTION: Final = bytes.fromhex("fe06e2d4c3d9")
"""That of SMC."""
_ETH_P_ALL: Final = 3
_ETHERNET: Final = 14
_GUARD: Final = 5.0


class Segment(NamedTuple):
    """A segment's header and data."""

    source: int
    target: int
    flags: int
    options: bytes
    data: bytes

    @property
    def is_syn(self) -> bool:
        return self.flags & (SYN | ACK) == SYN

    @property
    def is_syn_ack(self) -> bool:
        return self.flags & (SYN | ACK) == SYN | ACK


class Capture:
    """Segments of one port."""

    def __init__(self, interface: str, port: int) -> None:
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._sock.bind((interface, 0))
        self._port = port

    def close(self) -> None:
        self._sock.close()

    def taken(self) -> list[Segment]:
        """What has passed since the last call. A segment is here before who sent it goes on."""
        found = []
        while select.select([self._sock], [], [], 0)[0]:
            segment = self._take()
            if segment is not None:
                found.append(segment)
        return found

    def wait_for(self, flags: int) -> Segment:
        """The next segment with these flags; what passes before is dropped."""
        while select.select([self._sock], [], [], _GUARD)[0]:
            segment = self._take()
            if segment is not None and segment.flags == flags:
                return segment
        raise TimeoutError(f"no segment with flags {flags:#x} to or from port {self._port}")

    def _take(self) -> Segment | None:
        frame, (interface, _, kind, *_) = self._sock.recvfrom(1 << 16)
        # The loopback shows everything twice.
        if interface == "lo" and kind == socket.PACKET_OUTGOING:
            return None
        segment = parse(frame[_ETHERNET:])
        return segment if segment is not None and self._port in (segment.source, segment.target) else None


@contextlib.contextmanager
def capturing(port: int, interface: str = "lo") -> Iterator[Capture]:
    """A capture of `port`, from now on."""
    capture = Capture(interface, port)
    try:
        yield capture
    finally:
        capture.close()


def parse(packet: bytes) -> Segment | None:
    """The TCP segment in an IPv4 or IPv6 `packet` without extension headers; None for anything else."""
    if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:
        tcp = packet[4 * (packet[0] & 15) : struct.unpack_from("!H", packet, 2)[0]]
    elif packet[0] >> 4 == 6 and packet[6] == socket.IPPROTO_TCP:
        tcp = packet[40 : 40 + struct.unpack_from("!H", packet, 4)[0]]
    else:
        return None
    source, target = struct.unpack_from("!HH", tcp)
    header = 4 * (tcp[12] >> 4)
    return Segment(source, target, tcp[13], tcp[20:header], tcp[header:])


def send_syn(family: int, host: str, source: int, target: int, options: bytes) -> None:
    """Send a SYN with these options from `host` to itself; whoever answers gets a RST, as there is no such socket."""
    assert len(options) % 4 == 0
    header = struct.pack("!HHIIBBHHH", source, target, 1, 0, (20 + len(options)) // 4 << 4, SYN, 65535, 0, 0) + options
    address = socket.inet_pton(family, host)
    pseudo = address + address + struct.pack("!IxxxB", len(header), socket.IPPROTO_TCP)
    checked = header[:16] + struct.pack("!H", _checksum(pseudo + header)) + header[18:]
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        raw.bind((host, 0))
        raw.sendto(checked, (host, 0))


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
