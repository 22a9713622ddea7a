"""Runs a coroutine function on a fresh event loop of each kind, with a guard against hanging."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import uvloop

from support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LOOPS = ("asyncio", "uvloop")
GUARD = 30.0 * PATIENCE  # seconds after which a test counts as hung

P = ParamSpec("P")
T = TypeVar("T")


class HangError(AssertionError):
    """A coroutine was not done in time."""


class LoopComplaintError(AssertionError):
    """Something reached the loop's exception handler: an exception in a callback, or one never retrieved."""


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    """A new event loop: ``"asyncio"`` or ``"uvloop"``."""
    return uvloop.new_event_loop() if kind == "uvloop" else asyncio.new_event_loop()


def run_on(kind: str, main: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``main(*args, **kwargs)`` on a fresh loop.

    :raises HangError: after `GUARD` seconds; the stacks of all tasks are printed first.
    :raises LoopComplaintError: when the loop's exception handler was called.
    """
    return run_within(GUARD, kind, lambda: main(*args, **kwargs))


def run_within(limit: float, kind: str, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """:func:`run_on` with a limit in seconds."""
    complaints: list[str] = []

    def complain(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(complain)
        hung = False

        def expire() -> None:
            nonlocal hung
            hung = True
            for each in asyncio.all_tasks(loop):
                each.print_stack(file=sys.stderr)
            task.cancel()

        task = loop.create_task(main())
        guard = loop.call_later(limit, expire)
        try:
            return await task
        except asyncio.CancelledError:
            if hung:
                raise HangError(f"not done after {limit} s") from None
            raise
        finally:
            guard.cancel()
            gc.collect()  # an exception that nobody retrieves must be noticed here, not in the next test

    with asyncio.Runner(loop_factory=lambda: new_loop(kind)) as runner:
        result = runner.run(guarded())
    if complaints:
        raise LoopComplaintError("; ".join(complaints))
    return result
