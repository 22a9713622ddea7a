"""Applications by TCP over loopback, by unix socket and by smcfast: ``make bench-apps``.

Rounds in which every case is measured once by each transport, beginning with another one each time. `suite.services` says what
the cases are, and judges.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apps.support import servers
from suite import applications, machine, rounds
from suite.pair import ANSWER, LIMIT
from suite.services import CASES, LONG_SPIN, NO_SPIN, OURS
from support.child import Child

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from suite.services import Case

    Figures = dict[str, float]

ROUNDS: Final = 5
SECONDS: Final = 0.5
"""How long a measurement lasts."""
SPIN: Final[dict[str, dict[str, str]]] = {
    OURS: {},
    NO_SPIN: {"SMCFAST_SPIN_US": "0"},
    LONG_SPIN: {"SMCFAST_SPIN_US": "300"},
}
PATHS: Final = ":".join(str(machine.ROOT / name) for name in ("benches", "tests"))


class Ends:
    """The processes of a run: started when they are first asked for, and kept to its end."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._clients: dict[tuple[str, str, str], tuple[Child, dict[str, Any]]] = {}
        self._servers: dict[str, servers.Server] = {}
        self.versions = {name: metadata.version(name) for name in ("aiohttp", "redis", "asyncpg")}

    def measure(self, case: Case, transport: str, seconds: float) -> Figures:
        """The figures of one measurement."""
        ours = transport if transport in SPIN else OURS
        client, addresses = self._of(case.application, case.kind, ours)
        address = addresses[OURS if transport in SPIN else transport]
        details = {"connections": case.connections, "each": case.each, "seconds": seconds}
        client.send({"work": case.work, "over": transport, "address": address, **details})
        figures: Figures = client.receive(ANSWER)
        return figures

    def end(self) -> None:
        """Let the clients end, and see that they ended well."""
        for client, _ in self._clients.values():
            client.send(None)
            client.result(60, silent=False)

    def _of(self, application: str, kind: str, ours: str) -> tuple[Child, dict[str, Any]]:
        """A client, and where it finds the application by each transport."""
        key = (application, kind, ours)
        if key not in self._clients:
            env = {"PYTHONPATH": PATHS, "SMCFAST_FALLBACK": "forbid", **SPIN[ours]}
            if application == "aiohttp":
                cpus = rounds.places("a core each")
                addresses = self._http(kind, cpus[0], env)
            else:
                cpus = (None, None)  # where server, proxy and client run is the scheduler's business
                addresses = self._behind_proxy(application, kind, env)
            client = self._child(applications.drive, cpus[1], [addresses[OURS]], kind=kind, env=env)
            self._clients[key] = client, addresses
        return self._clients[key]

    def _http(self, kind: str, cpu: int | None, env: dict[str, str]) -> dict[str, Any]:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="smcfast-bench-"))
        server = self._child(applications.serve_http, cpu, folder, kind=kind, env=env)
        addresses: dict[str, Any] = server.receive(ANSWER)
        return addresses

    def _behind_proxy(self, application: str, kind: str, env: dict[str, str]) -> dict[str, Any]:
        if application not in self._servers:
            start = {"Redis": servers.redis, "PostgreSQL": servers.postgres}[application]
            self._servers[application] = server = self._stack.enter_context(start())
            self.versions[application] = server.version
        server = self._servers[application]
        port = self._stack.enter_context(_proxy(f"smc:{server.host}:0=unix:{server.unix}", kind, env))
        return {"tcp": server.port, "unix": server.unix, OURS: port}

    def _child(self, function: Any, *args: Any, kind: str, env: dict[str, str]) -> Child:
        child = Child(function, *args, loop=kind, env=env, limit=LIMIT)
        self._stack.callback(child.close)
        return child


@contextlib.contextmanager
def _proxy(forward: str, kind: str, env: dict[str, str]) -> Iterator[int]:
    """`smcfast proxy`: the port where it listens."""
    words = [sys.executable, "-m", "smcfast", "proxy", "--json", *(["--uvloop"] if kind == "uvloop" else []), forward]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | env) as process:
        try:
            assert process.stdout is not None
            event = json.loads(process.stdout.readline())
            yield int(event["at"][0].rpartition(":")[2])
        finally:
            process.terminate()


def measure(count: int, seconds: float) -> dict[str, Any]:
    """The rounds: for each case, the figures of its transports."""
    found = []
    with contextlib.ExitStack() as stack:
        ends = Ends(stack)
        for case in CASES:
            for transport in case.transports:
                ends.measure(case, transport, 0.1)  # does not count: imports, ways that are found
        for number in range(count):
            figures: dict[str, dict[str, Figures]] = {}
            for case in CASES:
                shift = number % len(case.transports)
                names = case.transports[shift:] + case.transports[:shift]
                figures[case.key] = {name: ends.measure(case, name, seconds) for name in names}
            found.append(figures)
            print(f"round {number + 1} of {count}", flush=True)
        ends.end()
        return {"versions": dict(ends.versions), "rounds": found}


def main(arguments: Sequence[str]) -> int:
    """Measure, and write; the exit status."""
    parser = argparse.ArgumentParser(description="Measure applications by TCP, by unix socket and by smcfast.")
    parser.add_argument("--into", type=Path, required=True, help="the file for all figures, as JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long a measurement lasts")
    options = parser.parse_args(arguments)
    facts = {"machine": machine.facts(), "date": datetime.date.today().isoformat(), "load": os.getloadavg()[0]}
    results = {**facts, **measure(options.rounds, options.seconds)}
    options.into.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
