"""The driver of the traffic: starts workers, lets them talk, disturbs them, and judges what they report.

Everything is decided by the seed of the round; when a fault strikes is a matter of the machine's speed, what it strikes is not.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from soak import judge, liar
from soak.plan import LIAR
from soak.worker import EXACT, work
from support.child import Child
from support.loops import LOOPS

WORKERS: Final = 3
CONNECTIONS_MAX: Final = 12
"""In one round."""
GUARD: Final = 180.0
"""Seconds for what a worker is asked for: longer than those after which it calls a connection hung itself."""
STOP_MAX: Final = 1.5
"""Seconds for which a worker is stopped at most."""
GROWTH_MAX: Final = 24 << 10
"""KiB of private memory by which a worker may grow after its first rounds: the interpreter's own arenas and caches."""
WARM: Final = 20
"""Rounds after which a worker's memory is taken as its measure."""
PLAIN_MAX: Final = 0.02
"""Share of undisturbed connections that may be TCP: on a busy machine a server may need more than the 50 ms it is given."""


class SoakError(AssertionError):
    """What went wrong, with the seed that brings it back."""


def run(seconds: float, seed: int, rounds: int | None = None) -> dict[str, Any]:
    """Traffic for so many seconds, or for so many rounds; the figures.

    :raises SoakError: with everything that was wrong in the first round in which something was.
    """
    traffic = Traffic(seed)
    try:
        begun = time.monotonic()
        number = 0
        while number < rounds if rounds is not None else time.monotonic() - begun < seconds:
            traffic.round(seed * 1_000_000 + number)
            number += 1
        traffic.end()
    finally:
        traffic.close()
    return {"rounds": number, **traffic.figures, "seconds": round(time.monotonic() - begun)}


@dataclass
class Life:
    """A worker, and what is known of it."""

    child: Child
    places: list[list[Any]]
    base: dict[str, Any]
    rounds: int = 0
    warm: int = 0
    """KiB of private memory when it had its first rounds behind it."""


@dataclass
class Context:
    """What one connection has met, for the judge."""

    client: int
    server: int
    lost: set[int] = field(default_factory=set)
    starved: bool = False
    late: bool = False

    @property
    def disturbed(self) -> bool:
        return bool(self.lost) or self.starved or self.late

    def faults(self, report: judge.Report) -> list[str]:
        peer = self.server if report["role"] == "client" else self.client
        return judge.faults(report, lost=peer in self.lost, starved=self.starved, late=self.late)


class Traffic:
    """The workers of a run."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._contexts: dict[int, Context] = {}
        self._liars: list[Child] = []
        self._names: set[str] = set()
        self._last: dict[int, list[judge.Report]] = {}
        self.figures: Counter[str] = Counter()
        self._workers = [self._worker() for _ in range(WORKERS)]

    def _worker(self) -> Life:
        child = Child(work, self._rng.choice(LOOPS), self._rng.getrandbits(32))
        told = child.receive(GUARD)
        self._names.update(f"@{name}" for name in told["holds"]["names"])
        return Life(child, told["places"], told["holds"])

    def round(self, seed: int) -> None:
        """Connections at once, faults meanwhile, and a look at everything afterwards."""
        rng = random.Random(seed)
        current = self._connect(rng)
        lost = self._disturb(rng, current)
        found = self._collect(current, lost)
        for index in lost:
            self._workers[index].child.close()
            self._workers[index] = self._worker()
        if found:
            met = "\n".join(f"{seed}: {context}" for seed, context in current.items())
            reports = "\n".join(f"worker {index}: {report}" for index, told in self._last.items() for report in told)
            raise SoakError("\n".join([f"round {seed}:", *found, met, reports]))

    def _connect(self, rng: random.Random) -> dict[int, Context]:
        wanted: dict[int, list[dict[str, Any]]] = {index: [] for index in range(WORKERS)}
        current = {}
        for _ in range(rng.randint(1, CONNECTIONS_MAX)):
            seed, client, server = rng.getrandbits(62), rng.randrange(WORKERS), rng.randrange(WORKERS)
            host, port = rng.choice(self._workers[server].places)
            after = rng.randrange(40) if rng.random() < 0.1 else None
            current[seed] = Context(client, server)
            wanted[client].append({"host": host, "port": port, "seed": seed, "cancel_after": after})
        if rng.random() < 0.15:
            seed, server = rng.getrandbits(62) | LIAR, rng.randrange(WORKERS)
            current[seed] = Context(-1, server)
            self._liars.append(Child(liar.lie, *rng.choice(self._workers[server].places), seed))
            self.figures["liars"] += 1
        self._contexts.update(current)
        for index, targets in wanted.items():
            self._workers[index].child.send(["connect", targets])
        return current

    def _disturb(self, rng: random.Random, current: dict[int, Context]) -> set[int]:
        """Nothing, or one kind of fault at one worker; the workers that are killed."""
        index = rng.randrange(WORKERS)
        child = self._workers[index].child
        kind = rng.choices(("none", "stop", "kill", "starve"), (4, 3, 2, 2))[0]
        self.figures[kind] += 1
        touched = [context for context in current.values() if index in (context.client, context.server)]
        if kind == "starve":
            child.send(["starve", rng.uniform(0.05, 0.5), rng.randrange(12)])
            for context in touched:
                context.starved = True
        elif kind == "stop":
            for context in current.values():
                context.late = True
            for _ in range(rng.randint(1, 3)):
                time.sleep(rng.uniform(0, 0.2))
                child.process.send_signal(signal.SIGSTOP)
                time.sleep(rng.uniform(0, STOP_MAX) ** 2 / STOP_MAX)
                child.process.send_signal(signal.SIGCONT)
        elif kind == "kill":
            time.sleep(rng.uniform(0, 0.6))
            for context in touched:
                context.lost.add(index)
            child.kill()
            return {index}
        return set()

    def _collect(self, current: dict[int, Context], lost: set[int]) -> list[str]:
        """Wait for all reports; what is wrong with them."""
        living = [index for index in range(WORKERS) if index not in lost]
        found = [fault for child in self._liars for fault in _crash(child)]
        self._liars.clear()
        for index in living:
            self._workers[index].child.send(["clients"])
        talked = [seed for index in living for seed in self._workers[index].child.receive(GUARD)]
        # Who talked had somebody to talk to, unless something came between them.
        sure = [seed for seed in talked if not (current[seed].lost or current[seed].starved)]
        for index in living:
            expected = [seed for seed in sure if current[seed].server == index]
            self._workers[index].child.send(["report", expected])
            told = self._workers[index].child.receive(GUARD)
            found += [f"worker {index}: {complaint}" for complaint in told["complaints"]]
            found += self._holds(index, told["holds"])
            self._last[index] = told["reports"]
            for report in told["reports"]:
                found += self._judge(report)
        return found

    def _judge(self, report: judge.Report) -> list[str]:
        role, seed = report["role"], report["seed"]
        self.figures[f"{role}s"] += 1
        if seed is None or role == "cancelled":
            return []
        context = self._contexts[seed]
        if role == "refused":
            return [] if context.lost or context.starved else [f"refused: {report}"]
        self.figures["bytes"] += report["got"]
        self.figures[report["path"]] += 1
        if report["path"] == "tcp" and report["reason"] == "peer_plain" and not context.disturbed:
            self.figures["plain"] += 1
            context.late = True
        return context.faults(report)

    def _holds(self, index: int, holds: dict[str, Any]) -> list[str]:
        """What a worker has kept that it did not have at first."""
        life = self._workers[index]
        found = [
            f"worker {index} holds {name}: {holds[name]}, at first {life.base[name]}"
            for name in EXACT
            if holds[name] != life.base[name]
        ]
        life.rounds += 1
        if life.rounds == WARM:
            life.warm = holds["anonymous"]
        elif life.rounds > WARM and holds["anonymous"] > life.warm + GROWTH_MAX:
            found.append(f"worker {index} has grown from {life.warm} to {holds['anonymous']} KiB")
        return found

    def end(self) -> None:
        """Let the workers end by themselves, well and silently.

        :raises SoakError: more connections than can be put down to a busy machine were TCP; names are left of a worker.
        """
        if self.figures["plain"] > PLAIN_MAX * self.figures["clients"] + 2:
            raise SoakError(f"too many connections were TCP without a reason: {dict(self.figures)}")
        for life in self._workers:
            life.child.send(["stop"])
        for life in self._workers:
            life.child.result(GUARD)
        left = self._names.intersection(Path("/proc/net/unix").read_text().split())
        if left:
            raise SoakError(f"names that are left of workers that have ended: {left}")

    def close(self) -> None:
        """End whoever still lives."""
        for child in [*self._liars, *(life.child for life in self._workers)]:
            child.close()


def _crash(child: Child) -> list[str]:
    """Whatever a liar does to its memory, its own process is none the worse for it."""
    status = child.process.wait(GUARD)
    output = child.output()
    child.close()
    return [f"a liar ended with status {status}:\n{output}"] if status else []
