"""The blocking server: `SmcListener`, and the thread that receives its connections."""

from __future__ import annotations

import collections
import contextlib
import errno
import logging
import os
import select
import signal
import socket
import sys
import threading
import warnings
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from smcfast import fallback, log, negotiate, netlink, page, rendezvous, steps
from smcfast.acceptor import RETRY_DELAY
from smcfast.discovery import Caller, shared_folder
from smcfast.errors import Fallback, SmcFallbackError, SmcHandshakeError
from smcfast.folder import Announcement
from smcfast.log import logger
from smcfast.narrowed import beforehand, narrowed, with_cause
from smcfast.negotiate import Clock
from smcfast.places import Places
from smcfast.plainsocket import PlainSocket
from smcfast.ringsocket import RingSocket
from smcfast.spare import Spare
from smcfast.timeouts import Timeouts

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from smcfast.blocking import SmcSocket
    from smcfast.config import SmcConfig
    from smcfast.steps import Steps, Wait

_GONE: Final = (BlockingIOError, InterruptedError, ConnectionAbortedError)
_BROKEN: Final = (errno.EBADF, errno.EINVAL)
"""Errors of the listening socket itself. Any other may be that of one connection: Linux hands out what is pending on it."""


class _Reception:
    """Takes connections through their set-up in a thread of its own, so that none waits for `accept`, or for another."""

    def __init__(self, sock: socket.socket, config: SmcConfig, backlog: int) -> None:
        """:param sock: listens; :param config: as the user gave it."""
        self._sock = sock
        self._asked = config
        self._config = narrowed(config)
        self._known = beforehand(config)
        self._room = backlog
        self._places = Places(config.max_pending_handshakes)
        self._spare = Spare()
        self._guests: dict[_Guest, Wait] = {}
        self._lock = threading.Lock()
        self._done: collections.deque[tuple[SmcSocket, Any]] = collections.deque()
        self._stopped = False
        # Who uses the descriptors: the listener up to its `stop`, the thread, and who is in `accept`.
        self._users = 1
        self._rests_until = 0.0
        self._error: Exception | None = None
        # Counts the connections that are ready, and is readable while there are any.
        self.ready = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._nudge = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._spare.take()
        # A program that has come to its end does not wait for it.
        self._thread = threading.Thread(target=self._run, name="smcfast-accept", daemon=True)

    def start(self) -> None:
        """:raises RuntimeError: no thread is to be had."""
        self.enter()
        self._thread.start()

    def enter(self) -> None:
        """Use the descriptors, which stay open; before the listener's `stop`. `leave` must follow."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Use them no more. The last one closes them."""
        with self._lock:
            self._users -= 1
            is_last = not self._users
        if is_last:
            self.close()

    def take(self) -> tuple[SmcSocket, Any] | None:
        """A connection and its peer's address; None when none is ready.

        :raises OSError: EBADF: it has been stopped. EINVAL: the thread has ended by an error, which is logged.
        """
        try:
            os.eventfd_read(self.ready)
        except BlockingIOError:
            return None
        with self._lock:
            if not self._done:
                os.eventfd_write(self.ready, 1)  # for the next one
                if self._error is None:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
                raise OSError(errno.EINVAL, f"the listener has failed: {self._error}")
            was_full = self._is_full()
            found = self._done.popleft()
        if was_full:
            os.eventfd_write(self._nudge, 1)
        return found

    def stop(self) -> None:
        """Close what nobody has taken, and leave; when this returns, the thread has let go of everything.

        In the thread itself, as a finalizer, it returns before that.
        """
        with self._lock:
            self._stopped = True
        os.eventfd_write(self._nudge, 1)
        try:
            if self._thread is not threading.current_thread():
                if not sys.is_finalizing():
                    self._thread.join()
                self._sock.close()
        finally:
            # Who waits in `accept` finds that it is closed.
            os.eventfd_write(self.ready, 1)
            self.leave()

    def forget(self) -> None:
        """In a forked child: the thread is not here, and the connections are the parent's."""
        for conn, _ in self._done:
            conn.close()
        for guest in self._guests:
            guest.conn.close()
        self.close()

    def close(self) -> None:
        """Close the descriptors, that of the listening socket too."""
        self._sock.close()
        self._spare.close()
        os.close(self.ready)
        os.close(self._nudge)

    def _is_full(self) -> bool:
        return len(self._done) + len(self._guests) >= self._room

    def _run(self) -> None:
        # Signals are for the threads of the program.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            while not self._stopped:
                self._accept()
                self._serve(self._wait())
        except Exception as error:  # noqa: BLE001 - it is told, and ends the thread
            logger.exception("a listener receives nobody any more")
            self._error = error
            os.eventfd_write(self.ready, 1)
        finally:
            for guest in self._guests:
                guest.give_up()
            with self._lock:
                self._stopped = True
                left, self._done = self._done, collections.deque()
            for conn, _ in left:
                conn.close()
            self.leave()

    def _accept(self) -> None:
        """Receive everybody who waits, as far as there is room."""
        while not self._stopped and not self._is_full() and monotonic() >= self._rests_until:
            try:
                conn, address = self._sock.accept()
            except _GONE:
                return
            except OSError as error:
                if error.errno in _BROKEN:
                    raise
                # The kernel may report the listener as ready again and again.
                level = logging.WARNING if error.errno in netlink.EXHAUSTED else logging.DEBUG
                logger.log(level, "accept: %s; the listener rests for %s s", error.strerror, RETRY_DELAY)
                self._rests_until = monotonic() + RETRY_DELAY
                return
            conn.setblocking(False)
            self._go(_Guest(conn, address, self._welcome), None)

    def _wait(self) -> set[int]:
        """Sleep until something can go on: the descriptors that are ready."""
        poll = select.poll()
        poll.register(self._nudge, select.POLLIN)
        until = [wait.until for wait in self._guests.values()]
        if not self._is_full():
            if self._rests_until > monotonic():
                until.append(self._rests_until)
            else:
                poll.register(self._sock, select.POLLIN)
        for wait in self._guests.values():
            for fd, events in wait.events().items():
                poll.register(fd, events)
        found = {fd for fd, _ in poll.poll(steps.milliseconds(min(until)) if until else None)}
        if self._nudge in found:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._nudge)
        return found

    def _serve(self, found: set[int]) -> None:
        now = monotonic()
        for guest, wait in list(self._guests.items()):
            is_ready = not found.isdisjoint(wait.events())
            if is_ready or now >= wait.until:
                self._go(guest, is_ready)

    def _go(self, guest: _Guest, ready: bool | None) -> None:
        self._guests.pop(guest, None)
        try:
            wait = guest.steps.go(ready)
        except SmcFallbackError:
            return  # It is logged and counted, and the connection is closed.
        except SmcHandshakeError as error:
            fallback.fail(self._config, log.peer(guest.conn), error.fallback)
            guest.conn.close()
            return
        except OSError:
            return  # As with asyncio, clients that vanish are of interest to nobody.
        except Exception:  # noqa: BLE001 - a fault of one connection must not end the others
            logger.exception("an incoming connection is dropped")
            return
        if wait is not None:
            self._guests[guest] = wait
            return
        with self._lock:
            self._done.append((guest.steps.result, guest.address))
        os.eventfd_write(self.ready, 1)

    async def _welcome(self, conn: socket.socket) -> SmcSocket:
        clock, place = Clock.start(self._config), self._places.place()
        caller = setup = None
        try:
            if self._known is not None:
                return self._plain(conn, clock, self._known)
            caller = Caller(conn, self._config, self._places.full, self._spare)
            setup = negotiate.greet(clock, conn, caller, self._config)
            if setup is not None:
                place.take()
            found = await negotiate.as_server(clock, conn, caller, setup, place, self._config)
            if isinstance(found, Fallback):
                return self._plain(conn, clock, with_cause(found, conn, self._asked))
            info = negotiate.describe(clock, found)
            return RingSocket.over(conn, found, info, "server", None)
        except SmcHandshakeError:
            raise  # Who tells of it closes the connection.
        except BaseException:
            conn.close()
            raise
        finally:
            place.leave()
            if caller is not None:
                caller.close()
            if setup is not None:
                setup.release()

    def _plain(self, conn: socket.socket, clock: Clock, why: Fallback) -> PlainSocket:
        told = fallback.settle(self._config, "server", log.peer(conn), why)
        return PlainSocket.over(conn, negotiate.timed(clock, told), "server", None)


class _Guest:
    """A connection whose set-up is under way."""

    def __init__(self, conn: socket.socket, address: Any, welcome: Callable[[socket.socket], Any]) -> None:
        self.conn = conn
        self.address = address
        self.steps: Steps[SmcSocket] = steps.Steps(lambda: welcome(conn))

    def give_up(self) -> None:
        self.steps.give_up()


class SmcListener(Timeouts):
    """A listening socket whose connections take the fastest path that both ends share; made by `create_server`.

    A thread of its own receives clients and goes through their handshakes, up to `backlog` of them at once, so that they are
    connected whether or not anybody is in `accept`, as those of a listening TCP socket are. It belongs to the process that
    made it: in a forked child everything but `close` raises `RuntimeError`.
    """

    def __init__(self, sock: socket.socket, backlog: int, config: SmcConfig) -> None:
        """Take over `sock`, which is bound, also if this raises."""
        self._sock = sock
        self._pid = os.getpid()
        self._timeout = socket.getdefaulttimeout()
        self._lock = threading.Lock()
        self._is_closed = True
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(sock.close)
            # The name comes first: who can connect can also find it.
            self._announced = _announced(sock, config)
            for each in self._announced:
                unless_started.callback(each.close)
            sock.listen(backlog)
            sock.setblocking(False)
            self._reception = _Reception(sock, config, backlog)
            unless_started.callback(self._reception.close)
            self._row = page.show_listener(None, sock, "smc-d" if self._announced else "tcp")
            if self._row is not None:
                unless_started.callback(self._row.close)
            self._reception.start()
            unless_started.pop_all()
        self._is_closed = False

    def __repr__(self) -> str:
        """State and address."""
        return f"<{type(self).__name__} {'closed' if self._is_closed else self._sock.getsockname()}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Warn of a listener that nobody closed, and close it."""
        if self._is_closed:
            return
        if self._is_ours() and not sys.is_finalizing():
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)
        self.close()

    def accept(self) -> tuple[SmcSocket, Any]:
        """Wait for a connection: it and its peer's address.

        :raises TimeoutError: none came within the timeout.
        :raises BlockingIOError: none is ready, and the timeout is 0.
        """
        self._check()
        with self._lock:
            self._check()
            self._reception.enter()
        try:
            found = self._accepted()
        finally:
            if self._is_ours():
                self._reception.leave()
        found[0].settimeout(socket.getdefaulttimeout())
        return found

    def _accepted(self) -> tuple[SmcSocket, Any]:
        until = None if self._timeout is None else monotonic() + self._timeout
        poll = select.poll()
        poll.register(self._reception.ready, select.POLLIN)
        while True:
            found = self._reception.take()
            if found is not None:
                return found
            if until is not None and monotonic() >= until:
                if self._timeout:
                    raise TimeoutError("timed out")
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            poll.poll(None if until is None else steps.milliseconds(until))
            self._check()

    def fileno(self) -> int:
        """A descriptor for selectors that is readable while a connection is ready; -1 once the listener is closed.

        It can do nothing else: never read from it, write to it or close it.
        """
        if self._is_closed:
            return -1
        self._check()
        return self._reception.ready

    def close(self) -> None:
        """Accept nobody any more, and close what nobody has accepted. No second call does any harm."""
        if not self._is_ours():
            self._forget()
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for each in self._announced:
            each.close()
        if self._row is not None:
            self._row.close()
        self._reception.stop()

    def _forget(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for each in self._announced:
                each.close()
            self._reception.forget()

    @property
    def family(self) -> socket.AddressFamily:
        """Of the listening socket."""
        return socket.AddressFamily(self._sock.family)

    @property
    def type(self) -> socket.SocketKind:
        """SOCK_STREAM."""
        return socket.SocketKind(self._sock.type)

    @property
    def proto(self) -> int:
        """Of the listening socket."""
        return self._sock.proto

    def getsockname(self) -> Any:
        """The address at which it listens."""
        return self._sock.getsockname()

    def getsockopt(self, level: int, optname: int, *args: Any) -> Any:
        """An option of the listening socket."""
        return self._sock.getsockopt(level, optname, *args)

    def setsockopt(self, level: int, optname: int, *args: Any) -> None:
        """Set an option of the listening socket."""
        self._sock.setsockopt(level, optname, *args)

    def _is_ours(self) -> bool:
        """False in a forked child, where the locks may be those of threads of the parent."""
        return os.getpid() == self._pid

    def _check(self) -> None:
        if not self._is_ours():
            raise RuntimeError("this server belongs to the process that forked; a child must start its own")
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _announced(sock: socket.socket, config: SmcConfig) -> list[socket.socket | Announcement]:
    """Let the clients of the bound `sock` look for smcfast; without that they use TCP."""
    if beforehand(config) is not None or "rendezvous" not in config.discovery or netlink.are_refused():
        return []
    announced: list[socket.socket | Announcement] = []
    try:
        announced.append(rendezvous.claim(rendezvous.listener_name(netlink.cookie(sock))))
    except OSError as error:
        logger.warning("a listener is not announced, its clients use TCP: %s", error)
    folder = shared_folder(config)
    if folder is not None:
        announced.append(Announcement(folder, sock))
    return announced
