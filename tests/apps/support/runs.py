"""Programs of others under `smcfast run`: started, asked, ended, and what each says of its paths."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import smcfast
from support.channel import GUARD

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS: Final = Path(__file__).resolve().parents[1] / "programs"
LIMIT: Final = 2 * GUARD  # seconds for a program


class Way(enum.Enum):
    """The path that connections are to take."""

    SMC = "smc-d"
    TCP = "tcp"

    @property
    def env(self) -> dict[str, str]:
        """The environment of programs that are to take it; anything else than shared memory is refused, or TCP is all there is."""
        return {"SMCFAST_FALLBACK": "forbid"} if self is Way.SMC else {"SMCFAST_PATHS": ""}

    @property
    def config(self) -> smcfast.SmcConfig:
        """The same for a connection of the test's own."""
        return smcfast.SmcConfig(fallback="forbid") if self is Way.SMC else smcfast.SmcConfig(paths=())

    def taken(self, connections: int) -> dict[str, Any]:
        """What a program says at its end that had so many connections: all took this way."""
        paths = dict.fromkeys(smcfast.stats()["connections"], 0) | {self.value: connections}
        reasons = {} if self is Way.SMC else {"disabled": connections}
        return {"paths": paths, "fallbacks": reasons, "forbidden": 0, "failed": 0}


def command(way: Way, *words: str) -> tuple[list[str], dict[str, str]]:
    """The command line of a program that is run, and its environment."""
    line = [sys.executable, "-W", "error", "-m", "smcfast", "run", "--json", *words]
    return line, {**os.environ, "PYTHONPATH": str(PROGRAMS), **way.env}


def farewell(said: str) -> dict[str, Any]:
    """What a program that was run says of its connections, in the last line on stderr."""
    line: dict[str, Any] = json.loads(said.splitlines()[-1])
    del line["pid"]
    return line


def asked(way: Way, *words: str) -> tuple[Any, dict[str, Any]]:
    """Run a client to its end: what it has printed, JSON, and its farewell, the one line on stderr."""
    line, env = command(way, *words)
    done = subprocess.run(
        line, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return json.loads(done.stdout), farewell(done.stderr)


class Serving:
    """A server that was run."""

    port = 0
    said: dict[str, Any]
    """Its farewell, once it has ended."""


@contextlib.contextmanager
def serving(way: Way, *words: str, announced: str = "") -> Iterator[Serving]:
    """A server from when it has said its port until the end of the block, where Ctrl-C ends it well.

    :param announced: what is in front of its port in the line of stderr that tells it; without, its first line on stdout is it.
    """
    line, env = command(way, *words)
    served = Serving()
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(line, text=True, stdin=subprocess.DEVNULL, env=env, **pipes) as process:  # type: ignore[call-overload]
        try:
            said = ""
            if announced:
                while announced not in (text := process.stderr.readline()):
                    assert text, said
                    said += text
                served.port = int(text.partition(announced)[2].split()[0])
            else:
                served.port = int(process.stdout.readline() or "0") or _failed(process)
            yield served
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    assert process.returncode == 0, said + rest
    served.said = farewell(rest)


def _failed(process: subprocess.Popen[str]) -> int:
    raise AssertionError(process.communicate(timeout=LIMIT)[1])
