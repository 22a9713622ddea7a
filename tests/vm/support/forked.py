"""Child processes by a fork instead of a new interpreter, whose start and imports take seconds under emulation.

A process that is forked off before the first test, with everything imported and nothing opened, forks the children on
request. They are handed on to the test process when their first parent ends, as orphans are to the nearest subreaper, so that
the test process waits for them like for any child. Apart from that a child is one of `support.child`.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Final, NoReturn

from support import child

if TYPE_CHECKING:
    from collections.abc import Mapping

_PR_SET_CHILD_SUBREAPER: Final = 36
_REQUEST_MAX: Final = 1 << 16


class Nursery:
    """Forks children; to be made before anything is opened that they must not have."""

    def __init__(self) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            self._control.close()
            _serve(theirs)
        theirs.close()

    def fork(self, words: list[str], env: Mapping[str, str], channel: int, output: int) -> Process:
        """A child that runs `support.child` with these arguments."""
        request = json.dumps([words, dict(env)]).encode()
        socket.send_fds(self._control, [request], [channel, output])
        return Process(int(self._control.recv(_REQUEST_MAX)))

    def close(self) -> None:
        """End the process that forks; the children stay."""
        self._control.close()
        os.waitpid(self._pid, 0)


class Process:
    """As much of `subprocess.Popen` as a child needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        if self.returncode is None and select.select([self._pidfd], [], [], 0)[0]:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status.

        :raises subprocess.TimeoutExpired: it is still running after `timeout` seconds.
        """
        if self.returncode is None and not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(["a forked child"], timeout or 0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Send it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkedChild(child.Child):
    """A :class:`support.child.Child` by a fork, where neither another interpreter nor namespaces are asked for."""

    def __init__(self, nursery: Nursery, *args: Any, **options: Any) -> None:
        self._nursery = nursery
        super().__init__(*args, **options)

    def _start(self, command: list[str], words: list[str], env: Mapping[str, str], channel: int) -> Any:
        if command[0] != sys.executable:
            return super()._start(command, words, env, channel)
        return self._nursery.fork(words, env, channel, self._output.fileno())


def _serve(control: socket.socket) -> NoReturn:
    """Fork for each request, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        request, fds, *_ = socket.recv_fds(control, _REQUEST_MAX, 2)
        if not request:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            grandchild = os.fork()
            if grandchild == 0:
                os.close(told)
                os.close(tell)
                control.close()
                _run(request, *fds)
            os.write(tell, str(grandchild).encode())
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(told, 32))
        for fd in (told, tell, *fds):
            os.close(fd)


def _run(request: bytes, channel: int, output: int) -> NoReturn:
    """Be the child."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(null)
        os.close(output)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the life of the process, as the next two
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        warnings.resetwarnings()
        warnings.simplefilter("error")
        words, env = json.loads(request)
        os.environ.update(env)
        child.main(str(channel), *words)
        status = 0
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)
