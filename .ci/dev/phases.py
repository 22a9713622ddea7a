"""Runs commands one after the other: prints them, times them, stops them when they hang, remembers how they closed."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The last line of pytest, cargo test and nextest, colours taken off.
_CLOSING = re.compile(r"^=+ .*\b(passed|failed|error)|^test result: |^\s*Summary \[|^\d+ passed, \d+ failed")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


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
        try:
            self.run(name, command, **options)
        except PhaseFailed as error:
            self.failures.append(str(error))

    def run(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        limit: float = 900.0,
        cwd: Path = ROOT,
    ) -> None:
        """Run ``command`` with ``env`` added to the environment.

        :raises PhaseFailed: when it ends with another status than 0 or has not ended after ``limit`` seconds.
        """
        words = [str(word) for word in command]
        assigned = " ".join(f"{key}={shlex.quote(value)}" for key, value in (env or {}).items() if key != "PATH")
        print(f"\n--- {name}\n    {assigned and assigned + ' '}{shlex.join(words)}", flush=True)
        started = time.monotonic()
        closing: list[str] = []
        try:
            self._stream(words, {**os.environ, **(env or {})}, limit, cwd, closing)
        finally:
            spent = time.monotonic() - started
            self._rows.append((name, spent, closing))
            print(f"--- {name}: {spent:.1f} s", flush=True)

    @staticmethod
    def _stream(words: list[str], env: Mapping[str, str], limit: float, cwd: Path, closing: list[str]) -> None:
        child = subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        expired = threading.Event()

        def stop() -> None:
            expired.set()
            _kill_group(child.pid)

        guard = threading.Timer(limit, stop)
        guard.start()
        assert child.stdout is not None
        try:
            for line in child.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                plain = _COLOUR.sub("", line).rstrip()
                if _CLOSING.search(plain):
                    closing.append(plain.strip())
            status = child.wait()
        finally:
            guard.cancel()
            _kill_group(child.pid)
            child.wait()
            child.stdout.close()
        if expired.is_set():
            raise PhaseFailed(f"stopped after {limit:.0f} s: {shlex.join(words)}")
        if status:
            raise PhaseFailed(f"exit status {status}: {shlex.join(words)}")

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
