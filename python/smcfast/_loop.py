"""One engine for each event loop, kept by the loop itself."""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from smcfast import _core
from smcfast.tls import teach_start_tls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smcfast.transport import RingTransport

_ATTRIBUTE = "_smcfast_engine"
_engines: weakref.WeakSet[LoopEngine] = weakref.WeakSet()


class SetupEngine(Protocol):
    """What a set-up needs of whoever runs it: an event loop, or a thread that waits by itself."""

    @property
    def core(self) -> _core.Engine:
        """The native engine."""

    async def ready(self, readable: Sequence[int], writable: Sequence[int], until: float, spin: float = 0.0) -> bool:
        """As `LoopEngine.ready`."""


by_hand: ContextVar[SetupEngine] = ContextVar("by_hand")
"""The engine of a set-up that runs without a loop, in its own context; see `smcfast.steps`."""


class LoopEngine:
    """The native engine of one event loop and the transports that live on it.

    It is an attribute of its loop, so both go together when the loop is no longer used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create the engine and have the loop poll its one fd. OSError: EMFILE, ENFILE, ENOMEM."""
        self._transports: dict[int, weakref.WeakSet[RingTransport]] = {}
        self._loop = loop
        self._thread = threading.current_thread().name
        self.core: _core.Engine = _core.Engine(loop.create_future, loop.call_soon, self._group_died, self._check_thread)
        loop.add_reader(self.core.fileno(), self.core.progress)
        _engines.add(self)

    def attach(self, transport: RingTransport, group: int) -> None:
        """Remember a transport of a link group: it must hear of the death of the process at the other end."""
        self._transports.setdefault(group, weakref.WeakSet()).add(transport)

    def detach(self, transport: RingTransport, group: int) -> None:
        """Forget a transport that was closed."""
        members = self._transports.get(group)
        if members is not None:
            members.discard(transport)
            if not members:
                del self._transports[group]

    def _check_thread(self) -> None:
        """A stream is used in a thread that was not the last one.

        :raises RuntimeError: that is not the thread of the loop.
        """
        here, thread = asyncio._get_running_loop(), threading.current_thread().name
        # Nobody runs the loop: whoever sets something up before or clears up behind may do so from any thread.
        if here is not self._loop and (here is not None or self._loop.is_running()):
            raise RuntimeError(
                f"this stream belongs to {self._loop!r} in thread {self._thread!r} and was used in thread {thread!r}"
                + (", which runs no loop" if here is None else f", which runs {here!r}")
                + "; call_soon_threadsafe and run_coroutine_threadsafe reach a loop from other threads"
            )
        self._thread = thread

    async def ready(self, readable: Sequence[int], writable: Sequence[int], until: float, spin: float = 0.0) -> bool:
        """Wait until one of the descriptors has something to read, or has room; False when `until` came first.

        Leaves nothing behind, cancelled or not. Much cheaper than the loop's own readers, which uvloop makes anew each time.

        :param until: a moment of `time.monotonic`.
        :param spin: seconds to look, with the loop going on, before sleeping.
        :raises OSError: ENOSPC, ENOMEM: the kernel watches no more.
        """
        if spin and self.core.spin_is_worthwhile() and await self._look(readable, writable, spin):
            return True
        number, waiter = self.core.watch(readable, writable)
        timer = self._loop.call_later(max(until - monotonic(), 0.0), _time_is_up, waiter)
        try:
            return await waiter is None
        finally:
            timer.cancel()
            self.core.unwatch(number)

    async def _look(self, readable: Sequence[int], writable: Sequence[int], spin: float) -> bool:
        found = False
        end = monotonic() + spin
        try:
            while not found and monotonic() < end:
                await asyncio.sleep(0)
                found = _core.is_ready(readable, writable)
        finally:
            self.core.spun(found)
        return found

    def _group_died(self, group: int) -> None:
        for transport in list(self._transports.get(group, ())):
            try:
                transport.peer_lost()
            except Exception as error:  # noqa: BLE001 - the others must hear of it all the same
                message = "Error in a transport whose peer has died"
                self._loop.call_exception_handler({"message": message, "exception": error, "transport": transport})


@atexit.register
def _close_links() -> None:
    """Tell peers of the end of their link groups, which they else find out by a test, minutes later.

    A loop that is in a cycle, or kept by somebody, is not deallocated before the process is gone.
    """
    for one in list(_engines):
        one.core.close_links()


def _time_is_up(waiter: asyncio.Future[bool | None]) -> None:
    if not waiter.done():
        waiter.set_result(False)


def current() -> SetupEngine:
    """Return the engine of the set-up that runs here."""
    return by_hand.get(None) or engine()


def engine(loop: asyncio.AbstractEventLoop | None = None) -> LoopEngine:
    """Return the engine of `loop` (default: the running one), made at its first use, which is in the loop's own thread.

    A child that goes on with a loop of its parent gets an engine of its own. No lock: one that another thread holds while
    this one forks would be held in the child for ever.
    """
    loop = loop or asyncio.get_running_loop()
    existing: LoopEngine | None = getattr(loop, _ATTRIBUTE, None)
    if existing is not None and existing.core.is_ours:
        return existing
    created = LoopEngine(loop)
    setattr(loop, _ATTRIBUTE, created)
    if existing is None:
        teach_start_tls(loop)
    return created
