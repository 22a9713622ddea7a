"""Runs commands: prints them, times them, stops them when they hang, remembers how they closed."""

import contextlib
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
# The last line of pytest, cargo test and nextest, colours taken off.
_CLOSING = re.compile(r"^=+ .*\b(passed|failed|error)|^test result: |^\s*Summary \[|^\d+ passed, \d+ failed")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

Check = tuple[str, Sequence[str | Path], Mapping[str, Any]]
"""Name, command and the options of :class:`_Command`."""


class PhaseFailed(Exception):
    """A command ended with an error or was stopped."""


class Phases:
    """The phases of one run, in order, with their durations in seconds and the closing lines of their test runners."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._rows: list[tuple[str, float, list[str]]] = []
        self.failures: list[str] = []

    def check(self, name: str, command: Sequence[str | Path], **options: Any) -> None:
        """:meth:`run` for one of several checks: a failure is remembered, and the next one still runs."""
        self.beside((name, command, options))

    def beside(self, *checks: Check) -> None:
        """:meth:`check` for several commands at the same time. What they print comes one after the other."""
        with contextlib.ExitStack() as stack:
            for name, running in [
                (name, stack.enter_context(_Command(name, command, **options))) for name, command, options in checks
            ]:
                try:
                    self._follow(name, running)
                except PhaseFailed as error:
                    self.failures.append(str(error))

    def run(self, name: str, command: Sequence[str | Path], **options: Any) -> None:
        """Run ``command``, with the options of :class:`_Command`.

        :raises PhaseFailed: when it ends with another status than 0 or has not ended at its limit.
        """
        with _Command(name, command, **options) as running:
            self._follow(name, running)

    def _follow(self, name: str, running: "_Command") -> None:
        """Print what it says until it ends."""
        print(f"\n--- {running.title}", flush=True)
        closing: list[str] = []
        try:
            for line in running.lines():
                sys.stdout.write(line)
                sys.stdout.flush()
                plain = _COLOUR.sub("", line).rstrip()
                if _CLOSING.search(plain):
                    closing.append(plain.strip())
            running.finish()
        finally:
            self._rows.append((name, running.spent, closing))
            print(f"--- {name}: {running.spent:.1f} s", flush=True)

    def report(self) -> None:
        """Print the table of durations and, last, how the test runners closed."""
        print("\n--- durations")
        for name, spent, _ in self._rows:
            print(f"{spent:8.1f} s  {name}")
        print(f"{time.monotonic() - self._begun:8.1f} s  in all")
        for name, _, closing in self._rows:
            for line in closing:
                print(f"[{name}] {line}" if not line.startswith("=") else line)
        sys.stdout.flush()


class _Command:
    """A running command; at the end of the block it is killed with all its children."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        limit: float = 900.0,
        cwd: Path = ROOT,
    ) -> None:
        """Start it, with ``env`` added to the environment.

        :param limit: seconds after which it is killed.
        """
        self._words = [str(word) for word in command]
        assigned = " ".join(f"{key}={shlex.quote(value)}" for key, value in (env or {}).items() if key != "PATH")
        self.title = f"{name}\n    {assigned and assigned + ' '}{shlex.join(self._words)}"
        self._begun = time.monotonic()
        self._spent: float | None = None
        self._limit = limit
        self._expired = threading.Event()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            self._words,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._guard = threading.Timer(limit, self._expire)
        self._listener = threading.Thread(target=self._listen)
        self._guard.start()
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.cancel()
        _kill_group(self._process.pid)
        self._process.wait()
        self._listener.join()

    @property
    def spent(self) -> float:
        """Seconds that it took, or has taken so far."""
        return time.monotonic() - self._begun if self._spent is None else self._spent

    def lines(self) -> Iterator[str]:
        """What it says on either output, as soon as it says it."""
        return iter(self._lines.get, None)

    def finish(self) -> None:
        """Wait for its end.

        :raises PhaseFailed: it was not a good one.
        """
        status = self._process.wait()
        if self._expired.is_set():
            raise PhaseFailed(f"stopped after {self._limit:.0f} s: {shlex.join(self._words)}")
        if status:
            raise PhaseFailed(f"exit status {status}: {shlex.join(self._words)}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in said:
                self._lines.put(line)
        self._spent = time.monotonic() - self._begun
        self._lines.put(None)

    def _expire(self) -> None:
        self._expired.set()
        _kill_group(self._process.pid)


def _kill_group(group: int) -> None:
    """Kill what is left of the session that a phase started."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def capture(command: Sequence[str | Path], *, limit: float = 60.0) -> str | None:
    """The standard output of ``command``, or None when it cannot be run or fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
