"""What the programs here have in common; none of them knows smcfast."""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

HOST = "127.0.0.1"
BIG = 5_000_000
"""Bytes: more than a ring and all buffers beside it hold at once."""


def pattern(size: int, seed: int = 1) -> bytes:
    """Bytes of which no part is like another."""
    return random.Random(seed).randbytes(size)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def run(kind: str, main: Coroutine[Any, Any, None]) -> None:
    """On asyncio's own loop or on uvloop."""
    if kind == "uvloop":
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


async def interrupted() -> None:
    """Wait for Ctrl-C."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, event.set)
    await event.wait()
