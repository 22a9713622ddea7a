"""Peers that die, stop, fork or exit at any moment: whoever survives is told, and nothing is left behind.

`run` plays the survivor, in this process, on loops of both kinds; the peers are processes of their own (`soak.victim`). Where
a peer ends is drawn from the seed: at the n-th call of a function, which visits each step of its life, or a moment after it,
which also ends it in the middle of a copy. What matters is how far the peer has come, not the time that a busy machine needs
for it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import gc
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

import smcfast
from smcfast import remembered
from soak import victim
from soak.victim import CONFIG, FATES, PATTERN, PHASES, Page, Plan
from support.addresses import port_of
from support.channel import Channel
from support.loops import LOOPS, run_within
from support.process import abandoned_names, abstract_names, descriptors, mappings, resident, state
from support.streams import eventually, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

GUARD: Final = 30.0
"""Seconds after which a round counts as hung."""
PENDING: Final = ("read", "readexactly", "write", "drain", "both", "nothing", "close")
"""What the survivor is about when its peer ends."""
HOSTS: Final = ("127.0.0.1", "::1")
STEPS: Final = 1000
"""Of a whole life, until one is known."""
LOOK: Final = 0.001
"""Seconds, about, between two looks at how far a peer has come."""
PATIENCE: Final = 50
"""Looks in a row that see a peer asleep: it may wait for ever for a survivor who does nothing, and is not waited for."""
CHUNK: Final = 125
"""Rounds on one loop."""
NEVER: Final = math.inf


class RoundError(AssertionError):
    """Something that must not be; the message has the seed and the plan."""


def run(rounds: int, seed: int) -> dict[str, Any]:
    """Live through `rounds` ends of peers.

    :returns: figures: how many ends hit which phase, what the survivors saw, on which paths, and the time it took.
    :raises RoundError: a survivor was told something wrong or was not told, or something was left behind.
    """
    rng = random.Random(seed)
    figures = _Figures()
    before = time.monotonic()
    with _fork_server() as server:
        for loop in LOOPS:  # what is made once and kept for ever is there then
            run_within(2 * GUARD, loop, lambda: _Rounds(server, rng, figures).run(2))
        gc.collect()
        figures.held = _held(server.files)
        for start in range(0, rounds, CHUNK):
            loop = LOOPS[start // CHUNK % len(LOOPS)]
            count = min(CHUNK, rounds - start)
            run_within(GUARD * count, loop, functools.partial(_Rounds(server, rng, figures).run, count))
            gc.collect()
            _nothing_is_left(server.files, figures.held)
            figures.memory.append(resident() // 1024)
    return {"rounds": rounds, "seed": seed, "seconds": round(time.monotonic() - before, 1), **figures.told()}


@dataclasses.dataclass
class _Figures:
    """What is counted over all rounds."""

    counts: dict[str, collections.Counter[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )
    held: dict[str, collections.Counter[str]] = dataclasses.field(default_factory=dict)
    memory: list[int] = dataclasses.field(default_factory=list)
    steps: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    """How many steps the shortest whole life of a role on a kind of loop had."""

    def told(self) -> dict[str, Any]:
        figures: dict[str, Any] = {name: dict(sorted(counter.items())) for name, counter in self.counts.items()}
        steps = {" ".join(life): steps for life, steps in sorted(self.steps.items())}
        return figures | {"steps": steps, "kilobytes": self.memory}


@dataclasses.dataclass
class _ForkServer:
    channel: Channel
    page: Page
    keeper: int
    """Writing a byte here lets a child go that a victim has left behind."""
    files: str
    """Where victims make temporary files."""


@contextlib.contextmanager
def _fork_server() -> Iterator[_ForkServer]:
    with contextlib.ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.callback(ours.close)
        stack.callback(theirs.close)
        page = os.memfd_create("page", 0)
        stack.callback(os.close, page)
        os.truncate(page, Page.SIZE)
        waits, keeper = os.pipe()
        close_waits = stack.enter_context(contextlib.ExitStack())
        close_waits.callback(os.close, waits)
        lets_go = stack.enter_context(contextlib.ExitStack())
        lets_go.callback(os.close, keeper)
        output = stack.enter_context(tempfile.TemporaryFile())
        files = stack.enter_context(tempfile.TemporaryDirectory())
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", victim.__file__, *map(str, (theirs.fileno(), page, waits))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": files},
            pass_fds=[theirs.fileno(), page, waits],
        )
        theirs.close()
        close_waits.close()
        shared = Page(page)
        stack.callback(shared.close)
        try:
            yield _ForkServer(Channel(ours), shared, keeper, files)
        except BaseException:
            process.kill()
            output.seek(0)
            print(output.read().decode(errors="replace")[-10_000:])
            raise
        finally:
            lets_go.close()
            ours.close()
            process.wait(GUARD)


class _Rounds:
    """The survivor on one loop: a server for the clients that end, and a client of the servers that do."""

    def __init__(self, server: _ForkServer, rng: random.Random, figures: _Figures) -> None:
        self._server = server
        self._rng = rng
        self._figures = figures
        self._servers: dict[str, smcfast.SmcServer] = {}
        self._streams: list[asyncio.Task[str]] = []
        self._plan: Plan
        self._moment = NEVER
        """The step of the peer, and a moment, at which its end comes from outside."""
        self._pid: asyncio.Future[int]
        self._pending = ""
        self._dead = asyncio.Event()

    async def run(self, count: int) -> None:
        for host in HOSTS:
            self._servers[host] = await smcfast.start_smc_server(self._accept, host, 0, config=CONFIG)
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        for _ in range(count):
            self._plan, self._pending = self._draw(), self._rng.choice(PENDING)
            self._figures.counts["loops"][f"{loop} and {self._plan.loop}"] += 1
            try:
                async with asyncio.timeout(GUARD):
                    await self._round()
            except Exception as error:
                said = self._server.page
                raise RoundError(
                    f"{self._plan} in phase {PHASES[said.phase]} after {said.steps} steps, {said.sent} bytes sent, "
                    f"ending={said.ending}; pending: {self._pending}; streams: {self._streams}"
                ) from error
        for server in self._servers.values():
            server.close()
            await server.wait_closed()

    def _draw(self) -> Plan:
        role = self._rng.choice(("client", "server"))
        loop = self._rng.choice(LOOPS)
        host = self._rng.choice(HOSTS)
        fate = self._rng.choice(FATES)
        whole = self._figures.steps.get((role, loop), STEPS)
        step = self._rng.randint(1, whole + whole // 10)
        self._moment = step if fate in ("kill", "stop and kill", "stop and go on") else NEVER
        return Plan(
            role=role,
            fate=fate,
            step=step if self._moment == NEVER else -1,
            seed=self._rng.getrandbits(32),
            loop=loop,
            address=(host, port_of(self._servers[host].sockets)),
        )

    async def _round(self) -> None:
        plan, page, channel = self._plan, self._server.page, self._server.channel
        page.clear()
        remembered.listeners._until.clear()
        self._streams, self._dead, self._pid = [], asyncio.Event(), asyncio.get_running_loop().create_future()
        channel.send(dataclasses.asdict(plan))
        fate = asyncio.create_task(self._bring_about())
        while "dead" not in (said := await channel.areceive()):
            if "pid" in said:
                self._pid.set_result(said["pid"])
            else:
                target = plan.address[0], said["port"]
                self._streams.append(asyncio.create_task(self._connect(target)))
        self._dead.set()
        fate.cancel()
        await asyncio.wait([fate])
        await self._all_told()
        if plan.fate == "kill after fork" and page.phase >= victim.TRANSFER:
            os.write(self._server.keeper, b"x")
        channel.send("reap")
        self._note((await channel.areceive())["status"])

    async def _bring_about(self) -> None:
        """The end that comes from outside: at a moment, or for who waits for ever."""
        plan, pid = self._plan, await self._pid
        await self._comes_to(self._moment, pid)
        await asyncio.sleep(self._rng.uniform(0, 0.002))
        if plan.fate.startswith("stop"):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self._rng.uniform(0, 0.01))
        if plan.fate == "stop and go on":
            os.kill(pid, signal.SIGCONT)
            await self._comes_to(NEVER, pid)
        leaves = plan.fate.startswith("exit") and self._server.page.steps >= plan.step
        if not leaves:  # whoever is on its way out must come to its end
            os.kill(pid, signal.SIGKILL)

    async def _comes_to(self, step: float, pid: int) -> None:
        """Wait until the peer has done so many steps, or does no more because it waits for something."""
        page, asleep = self._server.page, 0
        while page.steps < step and asleep < PATIENCE:
            before = page.steps
            await asyncio.sleep(LOOK)
            asleep = asleep + 1 if page.steps == before and state(pid) == "S" else 0

    async def _all_told(self) -> None:
        """Wait until everybody here knows; whoever the dead one had connected to must be accepted first."""
        await turns(5)
        await eventually(lambda: not any(server._welcome.pending for server in self._servers.values()))
        await turns(5)
        for task in self._streams:
            self._figures.counts["ends"][await task] += 1
        if not self._streams:
            self._figures.counts["ends"]["no stream"] += 1

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._streams.append(asyncio.create_task(self._survive(reader, writer)))

    async def _connect(self, target: tuple[str, int]) -> str:
        try:
            streams = await smcfast.open_smc_connection(*target, config=CONFIG)
        except ConnectionError:
            return "refused"
        return await self._survive(*streams)

    async def _survive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Do what is to be done until the end of the peer shows, and tell how it did."""
        path = writer.get_extra_info("smc").path
        self._figures.counts["paths"][path] += 1
        page = self._server.page
        survivor = _Survivor(reader, writer, self._dead, page)
        end = await survivor.live(self._pending)
        if end == "ended" and path == "smc-d" and not page.ending:
            raise RoundError("an end that nobody has declared")
        if end != "closed" and survivor.received < page.sent:
            raise RoundError(f"{survivor.received} bytes of {page.sent} that were in the ring, and {end}")
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
        return end

    def _note(self, status: int) -> None:
        plan, page, counts = self._plan, self._server.page, self._figures.counts
        if status not in (0, -signal.SIGKILL):
            raise RoundError(f"the peer ended with status {status}")
        if page.phase == victim.DONE:
            known = self._figures.steps.get((plan.role, plan.loop), page.steps)
            self._figures.steps[plan.role, plan.loop] = min(known, page.steps)
        counts["phases"][PHASES[page.phase]] += 1
        counts["fates"][plan.fate] += 1
        counts["pending"][self._pending] += 1


class _Survivor:
    """One stream whose other end will end."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dead: asyncio.Event, page: Page
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._dead = dead
        self._page = page
        self.received = 0

    async def live(self, pending: str) -> str:
        """ "ended", "reset", or "closed" when this end was closed before."""
        try:
            return await self._lives()[pending]()
        except asyncio.IncompleteReadError as error:
            self._check(error.partial)
            return "ended"
        except OSError as error:  # asyncio's write_eof on TCP raises ENOTCONN, which is no ConnectionError
            if self._writer.get_extra_info("smc").path == "smc-d" and not isinstance(error, ConnectionResetError):
                raise RoundError("only resets are expected here") from error
            await self._what_is_left()
            return "reset"
        except RuntimeError as error:  # uvloop's write on TCP, once the transport has heard of the end
            if self._writer.get_extra_info("smc").path != "tcp" or "handler is closed" not in str(error):
                raise
            return "reset"

    def _lives(self) -> dict[str, Callable[[], Coroutine[Any, Any, str]]]:
        return {
            "read": self._read,
            "readexactly": self._readexactly,
            "write": self._write_at_once,
            "drain": self._write,
            "both": self._both,
            "nothing": self._nothing,
            "close": self._close,
        }

    def _check(self, data: bytes) -> None:
        if data != PATTERN[self.received : self.received + len(data)]:
            raise RoundError(f"wrong bytes behind {self.received}")
        self.received += len(data)

    async def _read(self) -> str:
        while data := await self._reader.read(100_000):
            self._check(data)
        return "ended"

    async def _what_is_left(self) -> None:
        """A writer that was told has not read yet what came before."""
        with contextlib.suppress(ConnectionError):
            await self._read()

    async def _readexactly(self) -> str:
        while True:
            self._check(await self._reader.readexactly(20_000))

    async def _write(self) -> str:
        for _ in range(8):
            self._writer.write(PATTERN[:50_000])
            await self._writer.drain()
        self._writer.write_eof()
        return await self._read()

    async def _write_at_once(self) -> str:
        """Much that waits, and nobody who waits for it; the reader tells."""
        self._writer.write(PATTERN)
        self._writer.write_eof()
        return await self._read()

    async def _both(self) -> str:
        _, end = await asyncio.gather(self._write_only(), self._read())
        return end

    async def _write_only(self) -> None:
        with contextlib.suppress(ConnectionError):  # the reader tells
            for _ in range(8):
                self._writer.write(PATTERN[:50_000])
                await self._writer.drain()

    async def _nothing(self) -> str:
        """Nobody waits, and the transport is told all the same; unless the stream has ended in good order."""
        await self._dead.wait()
        if self._writer.get_extra_info("smc").path == "smc-d" and not self._page.ending:
            await eventually(self._writer.transport.is_closing)
        return await self._read()

    async def _close(self) -> str:
        """A close that waits for a peer to take what was written."""
        self._writer.write(PATTERN[:50_000])
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        return "closed"


def _held(files: str) -> dict[str, collections.Counter[str]]:
    """What this process holds, and what there is for all to see; `files` is where its peers make temporary files."""
    shared = [name for name in os.listdir("/dev/shm") if "smcfast" in name]
    return {
        "descriptors": collections.Counter(descriptors().values()),
        "mappings": collections.Counter({"smcfast": mappings("smcfast")}),
        "names": collections.Counter(abstract_names()),
        "names of nobody": collections.Counter(abandoned_names()),
        "files": collections.Counter(shared + os.listdir(files)),
    }


def _nothing_is_left(files: str, before: dict[str, collections.Counter[str]]) -> None:
    """Wait until there is nothing new; other processes of this machine come and go meanwhile."""
    until = time.monotonic() + GUARD
    while left := {what: new for what, now in _held(files).items() if (new := now - before[what])}:
        if time.monotonic() > until:
            raise RoundError(f"left behind: {left}")
        time.sleep(0.05)
