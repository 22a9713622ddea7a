"""Between a set-up and its peer: the rendezvous connection goes through the hands of the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

from smcfast import negotiate, rendezvous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest


class _Relayed:
    """A set-up of the core; what it sends on its rendezvous connection is changed on the way."""

    def __init__(self, real: Any, kind: int, change: Callable[[list[int]], list[int]]) -> None:
        self._real = real
        self._kind = kind
        self._change = change
        self._ends: list[socket.socket] = []

    def meet(self, conn: int, until: float) -> Any:
        near, middle = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        far = socket.socket(fileno=conn)
        self._ends = [middle, far]
        loop = asyncio.get_running_loop()
        loop.add_reader(middle, self._carry, middle, far)
        loop.add_reader(far, self._carry, far, middle)
        return self._real.meet(near.detach(), until)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        packet = rendezvous.take_frame(source)
        if packet is None:
            return
        frame, fds = packet
        if not frame:
            self._end()
            return
        sent = self._change(list(fds)) if target is self._ends[1] and frame[10] == self._kind else fds
        try:
            with contextlib.suppress(ConnectionError):
                rendezvous.send(target, frame, sent)
        finally:
            rendezvous.close_fds({*fds, *sent})

    def _end(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._ends:
            loop.remove_reader(sock)
            sock.close()
        self._ends = []

    def release(self) -> None:
        self._real.release()
        self._end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextlib.contextmanager
def altered(monkeypatch: pytest.MonkeyPatch, kind: int, change: Callable[[list[int]], list[int]]) -> Iterator[None]:
    """Frames of this kind leave with other descriptors; `change` keeps those that it gets, and makes others."""
    with monkeypatch.context() as patch:
        for name in ("client_setup", "server_setup"):
            real = getattr(negotiate, name)
            patch.setattr(negotiate, name, lambda *args, real=real: _Relayed(real(*args), kind, change))
        yield
