"""One engine for each event loop, kept by the loop itself."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING

from smcfast import _core

if TYPE_CHECKING:
    from smcfast.transport import RingTransport

_ATTRIBUTE = "_smcfast_engine"
_creation = threading.Lock()


class LoopEngine:
    """The native engine of one event loop and the transports that live on it.

    It is an attribute of its loop, so both go together when the loop is no longer used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create the engine and have the loop poll its one fd. OSError: EMFILE, ENFILE, ENOMEM."""
        self._transports: dict[int, weakref.WeakSet[RingTransport]] = {}
        self.core = _core.Engine(loop.create_future, loop.call_soon, self._group_died)
        loop.add_reader(self.core.fileno(), self.core.progress)

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

    def _group_died(self, group: int) -> None:
        for transport in list(self._transports.get(group, ())):
            transport.peer_lost()


def engine(loop: asyncio.AbstractEventLoop | None = None) -> LoopEngine:
    """Return the engine of `loop` (default: the running one), made at its first use.

    A child that goes on with a loop of its parent gets an engine of its own.
    """
    loop = loop or asyncio.get_running_loop()
    with _creation:
        existing: LoopEngine | None = getattr(loop, _ATTRIBUTE, None)
        if existing is not None and existing.core.is_ours:
            return existing
        created = LoopEngine(loop)
        setattr(loop, _ATTRIBUTE, created)
        return created
