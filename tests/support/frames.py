"""Packets of the rendezvous connection by hand, for peers that the tests play."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from smcfast import rendezvous

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence


def send_frame(conn: socket.socket, frame: bytes, fds: Sequence[int] = ()) -> bool:
    """`send` where it does not matter why it failed: False."""
    try:
        rendezvous.send(conn, frame, fds)
    except OSError:
        return False
    return True


async def next_frame(
    loop: asyncio.AbstractEventLoop, conn: socket.socket, deadline: float
) -> tuple[bytes, list[int]] | None:
    """Wait for a packet: b"" at the end of the connection, None when `deadline` came first; errors as for `take_frame`."""
    while (packet := rendezvous.take_frame(conn)) is None:
        if not await rendezvous.readable((conn,), deadline):
            return rendezvous.take_frame(conn)
    return packet


async def last_frame(
    loop: asyncio.AbstractEventLoop, conn: socket.socket, deadline: float
) -> tuple[bytes, list[int]] | None:
    """`next_frame` for a side that stops listening when `deadline` comes: after None the other side cannot send."""
    packet = await next_frame(loop, conn, deadline)
    if packet is not None:
        return packet
    # From here on a send fails with EPIPE at the sender; what is in the queue already was sent, and counts.
    conn.shutdown(socket.SHUT_RD)
    packet = rendezvous.take_frame(conn)
    return packet if packet is not None and packet[0] else None
