"""Two processes that measure between each other, and a folder and a page that they share."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite import blocking, iceoryx, streams, ucx
from support.child import Child

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT = 1800.0  # seconds that a pair may live
ANSWER = 120.0  # seconds for one measurement
ENDS = {"uvloop": streams, "asyncio": streams, "blocking": blocking, "ucxx": ucx, "iceoryx2": iceoryx}
"""The module that has both ends, for each kind of process."""
RESTLESS = ("ucxx",)
"""Kinds that poll without a pause: they are stopped while others are measured."""


class Pair:
    """A server and a client, each a process of its own."""

    def __init__(self, kind: str, server: Child, client: Child, page: str) -> None:
        self.kind = kind
        self._server = server
        self._client = client
        self._page = page
        self._addresses: dict[str, Any] = server.receive(60)
        self._signal(signal.SIGSTOP)

    def measure(self, over: str, work: str, **details: Any) -> dict[str, float]:
        """The client's figures of one measurement by the transport `over`."""
        self._signal(signal.SIGCONT)
        self._client.send({"work": work, "over": over, "address": self._addresses[over], **details})
        figures: dict[str, float] = self._client.receive(ANSWER)
        self._signal(signal.SIGSTOP)
        return figures

    def probe(self) -> float:
        """The noise probe: the round trip of 64 bytes between the cores of both ends, in microseconds."""
        Path(self._page).write_bytes(bytes(os.sysconf("SC_PAGESIZE")))
        for end in (self._server, self._client):
            end.send({"work": "probe", "path": self._page})
        us: float = self._client.receive(ANSWER)
        self._server.receive(ANSWER)
        return us

    def rest(self, seconds: float) -> float:
        """CPU seconds of both ends together while neither is asked for anything."""
        ends = (self._server, self._client)
        for end in ends:
            end.send({"work": "rest", "seconds": seconds})
        return sum(float(end.receive(ANSWER)["cpu_s"]) for end in ends)

    def end(self) -> None:
        """Let both processes end, and see that they ended well."""
        self._signal(signal.SIGCONT)
        for end in (self._client, self._server):
            end.send(None)
            end.result(60, silent=False)

    def _signal(self, which: signal.Signals) -> None:
        if self.kind in RESTLESS:
            for end in (self._server, self._client):
                os.kill(end.pid, which)


@contextlib.contextmanager
def pair(
    kind: str, names: Sequence[str], cpus: tuple[int | None, int | None], python: str = sys.executable
) -> Iterator[Pair]:
    """A pair of the kind "uvloop", "asyncio" or another of `ENDS`, whose server listens by each transport of `names`.

    `cpus` are the server's and the client's; None leaves an end to the scheduler.
    """
    ends: Any = ENDS[kind]
    loop = kind if kind in ("uvloop", "asyncio") else "asyncio"
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="smcfast-bench-"))
        children = []
        for function, arguments in ((ends.serve, (cpus[0], folder, list(names))), (ends.drive, (cpus[1],))):
            child = Child(function, *arguments, loop=loop, env=env, python=python, limit=LIMIT)
            stack.callback(child.close)
            children.append(child)
        both = Pair(kind, children[0], children[1], f"{folder}/page")
        yield both
        both.end()
