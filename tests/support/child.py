"""A second process for a test: a fresh interpreter of the same environment that runs a function of a test file.

The function must be found at the top level of its file. It gets the :class:`~support.channel.Channel` to the test as
its first argument, then the arguments of the test; what it returns is the result. A coroutine function runs on an event
loop of the kind that is asked for. Arguments and results are what JSON knows.

This file is also the program that the child runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the child: its own folder is not a place to import from
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from support.channel import GUARD, Channel, ChannelClosedError
from support.loops import run_within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class ChildFailedError(AssertionError):
    """The child raised, died, hung or wrote to stderr."""


class Child:
    """A running child process. ``send``, ``receive`` and ``areceive`` reach its function's first argument."""

    def __init__(
        self,
        function: Callable[..., Any],
        *args: Any,
        loop: str = "asyncio",
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        limit: float = 3 * GUARD,
        within: Sequence[str] = (),
    ) -> None:
        """Start it, by another interpreter perhaps; a coroutine function must be done within ``limit`` seconds.

        :param within: a command that runs the rest of its arguments as a program, in namespaces of its own for example.
        """
        ours, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in kill(); not a pipe: nobody need drain it
        words = [inspect.getfile(function), function.__qualname__, loop, str(limit), json.dumps(args)]
        with theirs:
            self.process = self._start([*within, python], words, env or {}, theirs.fileno())
        self._channel = Channel(ours)
        self.send = self._channel.send

    def _start(
        self, command: list[str], words: list[str], env: Mapping[str, str], channel: int
    ) -> subprocess.Popen[bytes]:
        """The process: `command` is an interpreter, `words` what `main` gets besides the descriptor `channel`."""
        return subprocess.Popen(
            [*command, "-W", "error", __file__, str(channel), *words],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            pass_fds=[channel],
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def receive(self, limit: float = GUARD) -> Any:
        """The next value that the function sent; blocks the thread for ``limit`` seconds at most."""
        with self._explained():
            return self._unwrap(self._channel.receive(limit))

    async def areceive(self, limit: float = GUARD) -> Any:
        """:meth:`receive` for a task."""
        with self._explained():
            return self._unwrap(await self._channel.areceive(limit))

    def result(self, limit: float = GUARD, *, silent: bool = True) -> Any:
        """What the function returned, once the process has ended well.

        :raises ChildFailedError: when it did not, or wrote to stdout or stderr although it should be ``silent``.
        """
        with self._explained():
            return self._ended(self._channel.receive(limit), limit, silent)

    async def aresult(self, limit: float = GUARD, *, silent: bool = True) -> Any:
        """:meth:`result` for a task; once the function has returned, the rest takes no time worth a task switch."""
        with self._explained():
            return self._ended(await self._channel.areceive(limit), limit, silent)

    def output(self) -> str:
        """What it wrote to stdout and stderr so far."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def kill(self) -> None:
        """End it at once, as a crash would. More than one kill does no harm."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._channel.close()

    def close(self) -> None:
        """Kill it and forget its output."""
        self.kill()
        self._output.close()

    @staticmethod
    def _unwrap(message: Any) -> Any:
        if "value" not in message:
            raise ChildFailedError(f"sent nothing more, and returned {message['result']!r}")
        return message["value"]

    def _ended(self, message: Any, limit: float, silent: bool) -> Any:
        if "result" not in message:
            raise ChildFailedError(f"has not returned, but sent {message['value']!r}")
        status = self.process.wait(limit)
        if status or (silent and self.output()):
            raise ChildFailedError(f"exit status {status}, output:\n{self.output()}")
        return message["result"]

    @contextlib.contextmanager
    def _explained(self) -> Any:
        """Say what the child wrote when it did not say what it should."""
        try:
            yield
        except (ChannelClosedError, TimeoutError, subprocess.TimeoutExpired) as error:
            gone = isinstance(error, ChannelClosedError)
            what = f"ended with status {self.process.wait(GUARD)}" if gone else "hangs"
            raise ChildFailedError(f"the child {what}, output:\n{self.output()}") from error


class _Wrapped(Channel):
    """The child's end: tells the function's values from its result."""

    def send(self, value: Any) -> None:
        super().send({"value": value})

    def finish(self, result: Any) -> None:
        super().send({"result": result})


def main(fd: str, file: str, name: str, loop: str, limit: str, arguments: str) -> None:
    """Run a function of a file with the channel `fd` and JSON's `arguments`, and send what it returns."""
    spec = importlib.util.spec_from_file_location("child", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["child"] = module
    spec.loader.exec_module(module)
    function = getattr(module, name)
    channel = _Wrapped(socket.socket(fileno=int(fd)))
    args = json.loads(arguments)
    if inspect.iscoroutinefunction(function):
        result = run_within(float(limit), loop, lambda: function(channel, *args))
    else:
        result = function(channel, *args)
    channel.finish(result)
    channel.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
