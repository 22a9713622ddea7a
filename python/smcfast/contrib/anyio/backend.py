"""The backend of anyio that runs: it has to be asyncio's."""

from __future__ import annotations

import asyncio


def check() -> None:
    """:raises RuntimeError: this is no task of asyncio, so anyio runs on another backend."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    # trio in its guest mode runs inside asyncio's loop, but in no task of it.
    if task is None:
        raise RuntimeError('smcfast needs an event loop of asyncio: run anyio with backend="asyncio"')
