"""Connected blocking sockets, on a ring or on TCP, for tests that hold for both."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import smcfast
from smcfast import SmcConfig
from smcfast.ringsocket import RingSocket
from support.channel import GUARD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smcfast import SmcListener, SmcSocket

PATHS = ("smc-d", "tcp")
RING = 16 * 1024


def config_of(path: str, **options: Any) -> SmcConfig:
    """A configuration whose connections can have this path alone."""
    if path == "tcp":
        return SmcConfig(paths=(), **{"rmb_size": RING, **options})
    return SmcConfig(paths=(path,), fallback="forbid", **{"rmb_size": RING, **options})


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def serving(host: str = "127.0.0.1", path: str = "smc-d", **options: Any) -> SmcListener:
    """A listener whose `accept` waits no longer than a test may hang."""
    listener = smcfast.create_server((host, 0), family=family_of(host), config=config_of(path, **options))
    listener.settimeout(GUARD)
    return listener


def calling(listener: SmcListener, host: str = "127.0.0.1", path: str = "smc-d", **options: Any) -> SmcSocket:
    port = listener.getsockname()[1]
    return smcfast.create_connection((host, port), GUARD, config=config_of(path, **options))


def assert_path(sock: SmcSocket, path: str) -> None:
    info = sock.smc_info
    assert info is not None
    assert (info.path, isinstance(sock, RingSocket)) == (path, path == "smc-d"), info


@contextlib.contextmanager
def connected(host: str = "127.0.0.1", path: str = "smc-d", **options: Any) -> Iterator[tuple[SmcSocket, SmcSocket]]:
    """A client and its server, which wait no longer than a test may hang."""
    with serving(host, path, **options) as listener:
        client = calling(listener, host, path, **options)
        with client:
            server, _ = listener.accept()
            with server:
                server.settimeout(GUARD)
                assert_path(client, path)
                assert_path(server, path)
                yield client, server


def received(sock: SmcSocket, size: int) -> bytes:
    """So many bytes, or those up to the end."""
    data = bytearray()
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return bytes(data)


class Beside:
    """A function that runs in a thread of its own; `result` waits for it, and raises what it has raised."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function, args), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._value = function(*args)
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._error = error

    def result(self) -> Any:
        self._thread.join(GUARD)
        assert not self._thread.is_alive(), "the thread hangs"
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error
        return self._value


def sleeps(sock: SmcSocket, what: str, least: int = 1) -> None:
    """Wait until a thread sleeps in `sock`, on a ring: `what` is the counter of its waits, "stalls_received" or "stalls_sent"."""
    until(lambda: sock.smc_info is not None and sock.smc_info.counters[what] >= least)


def until(condition: Callable[[], bool]) -> None:
    """Wait until another thread or process has come so far."""
    deadline = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.001)


def send_for_ever(sock: SmcSocket, size: int = 100_000) -> None:
    """Until it raises."""
    while True:
        sock.send(bytes(size))


def sent_without_waiting(sock: SmcSocket) -> int:
    """Send until there is no room: so many bytes."""
    sent = 0
    while True:
        try:
            sent += sock.send(bytes(50_000))
        except BlockingIOError:
            return sent
