"""`smcfast proxy` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.channel import GUARD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Proxy:
    """A running one; `at` has where its forwards listen, in their order."""

    def __init__(self, process: asyncio.subprocess.Process, at: list[list[str]]) -> None:
        self.process = process
        self.at = at
        self.connections: list[dict[str, Any]] = []
        """What it has told of connections that are over."""
        self.warnings: list[str] = []

    def port(self, forward: int = 0) -> int:
        """Where one of its forwards listens."""
        return int(self.at[forward][0].rpartition(":")[2])

    async def told(self) -> dict[str, Any]:
        """What it tells next; warnings are kept aside."""
        assert self.process.stdout is not None
        while True:
            async with asyncio.timeout(GUARD):
                line = await self.process.stdout.readline()
            event: dict[str, Any] = json.loads(line)
            if event.get("event") != "warning":
                return event
            self.warnings.append(event["text"])

    async def passed(self) -> dict[str, Any]:
        """The next connection that is over."""
        event = await self.told()
        assert event["event"] == "connection", event
        self.connections.append(event)
        return event

    async def ended(self, number: int = 0) -> tuple[int, dict[str, Any]]:
        """Its exit code and last words, once it has had the signal `number` and told of all connections."""
        if number:
            self.process.send_signal(number)
        while (event := await self.told())["event"] == "connection":
            self.connections.append(event)
        assert event["event"] == "ended"
        async with asyncio.timeout(GUARD):
            return await self.process.wait(), event

    def descriptors(self) -> set[str]:
        """What it has open, by number."""
        return set(os.listdir(f"/proc/{self.process.pid}/fd"))

    def peak(self) -> int:
        """Bytes of memory that it has ever had at once."""
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (line,) = (line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024


@contextlib.asynccontextmanager
async def proxy(loop_kind: str, *arguments: str, env: dict[str, str] | None = None) -> AsyncIterator[Proxy]:
    """Run it until the end of the block, where it must not have complained."""
    words = [*(["--uvloop"] if loop_kind == "uvloop" else []), *arguments]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-m", "smcfast", "proxy", "--json", "--verbose", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    assert process.stderr is not None
    try:
        running = Proxy(process, [])
        for _ in range(sum("=" in word for word in arguments)):
            event = await running.told()
            assert event.get("event") == "listening", event
            running.at.append(event["at"])
        yield running
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        complaints = await process.stderr.read()
        assert process.stdout is not None
        await process.stdout.read()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]
    assert not complaints, complaints.decode()
