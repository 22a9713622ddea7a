"""A process of the traffic: it serves and connects at once, and lives until it is stopped or killed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import smcfast
from smcfast import remembered
from soak.judge import HELLO
from soak.plan import Plan, configured
from soak.talk import STALL, Talk
from support.addresses import port_of
from support.loops import run_within
from support.process import abstract_names, descriptors, descriptors_left

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel

HOSTS: Final = ("127.0.0.1", "::1")
LISTENERS: Final = 2
"""On each host, each with settings of its own."""
EXACT: Final = ("fds", "bells", "names", "tasks", "rings")
"""What an idle worker holds, always as much as before."""
RESTING: Final = 4 * 3
"""Descriptors of link groups that outlive their connections: two bells and a witness each, see docs/limits.md."""
FOR_EVER: Final = 1e8
"""Seconds: no guard of its own, the driver has one."""


def work(channel: Channel, kind: str, seed: int) -> None:
    """Run in a child process: obey the driver's commands."""
    logging.disable(logging.WARNING)  # that the peer of a write is gone is what happens here all the time
    run_within(FOR_EVER, kind, lambda: Worker(channel, seed).run())


class Worker:
    """Servers, the connections of both roles, and the reports of those that have ended."""

    def __init__(self, channel: Channel, seed: int) -> None:
        self._channel = channel
        self._rng = random.Random(seed)
        self._servers: list[smcfast.SmcServer] = []
        self._clients: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._reports: list[dict[str, Any]] = []
        self._complaints: list[str] = []
        self._starved = False
        self._base: dict[str, Any] = {}

    async def run(self) -> None:
        """Serve until the driver says "stop"."""
        asyncio.get_running_loop().set_exception_handler(self._complain)
        for host in HOSTS * LISTENERS:
            server = await smcfast.start_smc_server(self._serve, host, 0, config=configured(self._rng))
            self._servers.append(server)
        await self._warm_up()
        places = [server.sockets[0].getsockname()[:2] for server in self._servers]
        await self._quiet()
        self._base = self._holdings()
        self._channel.send({"places": places, "holds": self._base})
        commands: dict[str, Callable[..., Any]] = {
            "connect": self._connect,
            "starve": self._starve,
            "clients": self._ended,
            "report": self._report,
        }
        while (command := await self._channel.areceive(FOR_EVER))[0] != "stop":
            await commands[command[0]](*command[1:])
        for server in self._servers:
            server.close()
            await server.wait_closed()

    def _complain(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._starved and context["message"] == "socket.accept() out of system resource":
            return
        self._complaints.append(f"{context['message']}: {context.get('exception')!r}")

    async def _warm_up(self) -> None:
        """Whatever is made once in a process is there before anything is counted."""
        for server in self._servers:
            host = server.sockets[0].getsockname()[0]
            reader, writer = await smcfast.open_smc_connection(host, port_of(server.sockets))
            writer.close()
            assert await reader.read() == b""
            await writer.wait_closed()
        await self._settle(lambda: len(self._reports) == len(self._servers))
        self._reports.clear()

    # As a server.

    async def _serve(self, reader: smcfast.SmcStreamReader, writer: smcfast.SmcStreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            seed = int.from_bytes(await asyncio.wait_for(reader.readexactly(HELLO), 2 * STALL), "big")
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()  # a client that was cancelled or killed before it said anything
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._reports.append({"seed": None, "role": "server", "error": None})
        else:
            self._reports.append(await Talk(Plan.of(seed), "server", reader, writer).run())
        finally:
            self._serving.discard(task)

    # As a client.

    async def _connect(self, targets: list[dict[str, Any]]) -> None:
        for target in targets:
            task = asyncio.ensure_future(self._open(**target))
            self._clients.add(task)
            task.add_done_callback(self._clients.discard)

    async def _open(self, host: str, port: int, seed: int, cancel_after: int | None) -> None:
        rng = random.Random(f"{seed} opening")
        opening = asyncio.ensure_future(
            smcfast.open_smc_connection(
                host,
                port,
                happy_eyeballs_delay=rng.choice((None, 0.25)),
                config=configured(rng),
            )
        )
        if cancel_after is not None:
            for _ in range(cancel_after):
                await asyncio.sleep(0)
            opening.cancel()
        try:
            reader, writer = await opening
        except asyncio.CancelledError:
            self._reports.append({"seed": seed, "role": "cancelled", "error": None})
            return
        except OSError as error:
            self._reports.append({"seed": seed, "role": "refused", "error": None, "why": repr(error)})
            return
        writer.write(seed.to_bytes(HELLO, "big"))
        self._reports.append(await Talk(Plan.of(seed), "client", reader, writer).run())

    # Faults and figures.

    async def _starve(self, seconds: float, left: int) -> None:
        """Leave `left` descriptors for so many seconds, beside whatever goes on."""

        async def starve() -> None:
            with descriptors_left(left):
                await asyncio.sleep(seconds)
            await asyncio.sleep(1.1)  # as long as a listener rests

        self._starved = True
        task = asyncio.ensure_future(starve())
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _ended(self) -> None:
        """When all connections that were begun here have ended, tell the driver which of them came to talk."""
        await self._settle(lambda: not self._clients)
        self._channel.send([report["seed"] for report in self._reports if report["role"] == "client"])

    async def _report(self, expected: list[int]) -> None:
        """Report, when the `expected` connections and all others have ended at this server, and nothing more changes."""

        def arrived() -> bool:
            seeds = {report["seed"] for report in self._reports if report["role"] == "server"}
            return not self._serving and seeds.issuperset(expected)

        await self._settle(arrived)
        await self._quiet()
        self._starved = False
        reports, self._reports = self._reports, []
        complaints, self._complaints = self._complaints, []
        self._channel.send({"reports": reports, "complaints": complaints, "holds": self._holdings()})

    async def _settle(self, condition: Any) -> None:
        """Let the loop go on until `condition` holds; the driver has the guard."""
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)

    async def _quiet(self) -> None:
        """Wait until nothing is held that was not held at first; what stays is for the driver to complain of."""
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if self._base and all(self._holdings()[name] == self._base[name] for name in EXACT):
                return
            if not self._base and not self._serving:
                return

    def _holdings(self) -> dict[str, Any]:
        gc.collect()
        remembered.listeners._until.clear()  # a server that was stopped is no plain one for the next half minute
        groups = sum(what in ("anon_inode:[timerfd]", "anon_inode:[pidfd]") for what in descriptors().values())
        return {
            "fds": len(descriptors()) - groups,
            "bells": max(groups - RESTING, 0),
            "names": sorted(abstract_names()),
            "tasks": len(asyncio.all_tasks()),
            "rings": Path("/proc/self/maps").read_text().count("memfd:smcfast"),
            "anonymous": _anonymous(),
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }


def _anonymous() -> int:
    """Private memory of this process in KiB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1])
