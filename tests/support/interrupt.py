"""Cancellation at every await point of a coroutine, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import types
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")


@types.coroutine
def cancelled_at(point: int, coroutine: Coroutine[Any, Any, T], *, woken: bool = False) -> Generator[Any, Any, T]:
    """Run `coroutine`; where it would go on after having been suspended for the `point`-th time, it is cancelled.

    :param woken: what it waits for comes first, and the cancellation in the same turn of the loop.
    :raises CancelledError: it was; otherwise it had fewer points, and this is its result.
    """
    try:
        waited = coroutine.send(None)
        for _ in range(point):
            try:
                sent = yield waited
            except BaseException as error:  # noqa: BLE001 - handed on
                waited = coroutine.throw(error)
            else:
                waited = coroutine.send(sent)
        if woken:
            with contextlib.suppress(Exception):
                yield waited
        elif isinstance(waited, asyncio.Future):
            # What it waits for must not wake anybody any more, as in a task's own cancel.
            waited._asyncio_future_blocking = False
            waited.cancel()
        waited = coroutine.throw(asyncio.CancelledError())
        while True:  # it cleans up
            sent = yield waited
            waited = coroutine.send(sent)
    except StopIteration as stop:
        value: T = stop.value
        return value
