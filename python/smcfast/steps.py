"""Set-ups without an event loop: the coroutines of discovery and handshake, driven by whoever waits for their descriptors.

They wait for nothing but descriptors and moments, by way of `current().ready`. Here that hands out a `Wait`, and the
driver answers whether a descriptor was ready in time.
"""

from __future__ import annotations

import contextvars
import functools
import select
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from smcfast import _native

if _native.AVAILABLE:
    from smcfast import _core
    from smcfast._loop import by_hand

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

_T = TypeVar("_T")
READABLE = select.POLLIN | getattr(select, "POLLRDHUP", 0)


class Wait(NamedTuple):
    """What a set-up waits for."""

    readable: Sequence[int]
    writable: Sequence[int]
    until: float
    """A moment of `time.monotonic`."""

    def events(self) -> dict[int, int]:
        """The descriptors, with what poll and epoll call it."""
        return dict.fromkeys(self.readable, READABLE) | dict.fromkeys(self.writable, select.POLLOUT)


class _Ready:
    """Awaited once: whether one of the descriptors was ready in time."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Wait, bool, bool]:
        return (yield self._wait)


def _no_loop(*_: object) -> Any:
    raise RuntimeError("this connection has no event loop")


class HandEngine:
    """The engine of one connection, made when it is needed: a connection that waits by itself has a doorbell of its own."""

    @functools.cached_property
    def core(self) -> _core.Engine:
        """The native engine. OSError: EMFILE, ENFILE, ENOMEM."""
        return _core.Engine(_no_loop, _no_loop, _no_loop, _no_loop)

    async def ready(self, readable: Sequence[int], writable: Sequence[int], until: float, spin: float = 0.0) -> bool:
        """As `LoopEngine.ready`; it looks in place."""
        if spin and self.core.spin_is_worthwhile() and self._look(readable, writable, spin):
            return True
        return await _Ready(Wait(readable, writable, until))

    def _look(self, readable: Sequence[int], writable: Sequence[int], spin: float) -> bool:
        found = False
        end = monotonic() + spin
        try:
            while not found and monotonic() < end:
                found = _core.is_ready(readable, writable)
        finally:
            self.core.spun(found)
        return found


class Steps(Generic[_T]):
    """One set-up, step by step: `go` until it is over, or `give_up`."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> None:
        self._context = contextvars.copy_context()
        self._context.run(by_hand.set, HandEngine())
        self._coroutine: Coroutine[Any, Any, _T] | None = self._context.run(make)

    def go(self, ready: bool | None = None) -> Wait | None:
        """Go on with the answer to the last `Wait` (None: begin); the next one, None when it is over and has a `result`.

        Raises what the set-up raises.
        """
        assert self._coroutine is not None
        try:
            wait: Wait = self._context.run(self._coroutine.send, ready)
        except StopIteration as end:
            self.result: _T = end.value
            # The engine belongs to the connection from here on, and goes with it.
            self._coroutine, self._context = None, contextvars.copy_context()
            return None
        return wait

    def give_up(self) -> None:
        """Have the set-up close what it has open; what has a result already is closed with that."""
        if self._coroutine is not None:
            self._context.run(self._coroutine.close)


def run(make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a set-up to its end, in this thread; signal handlers may break it off."""
    steps = Steps(make)
    try:
        wait = steps.go()
        while wait is not None:
            wait = steps.go(_poll(wait))
    except BaseException:
        steps.give_up()
        raise
    return steps.result


def _poll(wait: Wait) -> bool:
    poll = select.poll()
    for fd, events in wait.events().items():
        poll.register(fd, events)
    return bool(poll.poll(milliseconds(wait.until)))


def milliseconds(until: float) -> float:
    """From now to a moment, for poll: not shorter, and not below 0."""
    return max(until - monotonic(), 0.0) * 1000
