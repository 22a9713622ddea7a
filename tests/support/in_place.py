"""Streams whose bytes are written and read in their place, on a ring or, by copies, over TCP."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from smcfast import SmcConfig
from smcfast.loans import CopiedReservation, CopiedView
from support.streams import Pair, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.streams import End

RING: Final = 16 * 1024


@contextlib.asynccontextmanager
async def connected_by(path: str, host: str = "127.0.0.1", **settings: Any) -> AsyncIterator[Pair]:
    """Both ends of a connection that takes `path`, "smc-d" or "tcp"; its ring is small unless `settings` say otherwise."""
    settings = {"rmb_size": RING, **settings, **({"paths": ()} if path == "tcp" else {})}
    async with connected(host, path=path, config=SmcConfig(**settings)) as pair:
        yield pair


def on_ring(loan: object) -> bool:
    """Is a view or a reservation no copy?"""
    return not isinstance(loan, CopiedView | CopiedReservation)


async def send(end: End, data: bytes, at_once: int = RING) -> None:
    """Through reservations alone."""
    place = 0
    while place < len(data):
        with await end.writer.reserve(min(at_once, len(data) - place)) as room:
            assert 0 < len(room) <= at_once
            size = min(len(room), len(data) - place)
            room[:size] = data[place : place + size]
            room.commit(size)
        place += size


async def receive(end: End, size: int, at_once: int = -1) -> bytes:
    """Through views alone."""
    got = bytearray()
    while len(got) < size:
        with await end.reader.view(min(at_once, size - len(got))) as view:
            assert len(view), "the stream has ended"
            got += view
            view.consume()
    return bytes(got)
