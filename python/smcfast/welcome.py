"""What happens to a server's connection between accept and its delivery."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from smcfast import fallback, kernel, log, negotiate, netlink, option, order
from smcfast.discovery import Caller, shared_folder
from smcfast.errors import Fallback, SmcFallbackError, SmcHandshakeError
from smcfast.folder import Announcement
from smcfast.negotiate import Clock
from smcfast.places import Place, Places
from smcfast.reasons import reason
from smcfast.registration import Registration
from smcfast.spare import Spare
from smcfast.users import allowed_uids

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from smcfast._core import Endpoint, ServerSetup
    from smcfast.config import SmcConfig
    from smcfast.delivery import Delivered, Delivery
    from smcfast.info import SmcInfo


class Welcome:
    """Receives the connections of a server; each has a task of its own until it is delivered."""

    def __init__(
        self,
        delivery: Delivery,
        config: SmcConfig,
        when_delivered: Callable[[Delivered], None] | None,
        when_idle: Callable[[], None],
    ) -> None:
        """:param when_idle: called whenever a task has ended; what waits for the last one can look at `pending`."""
        self._loop = delivery.loop
        self._delivery = delivery
        self._config = config
        self._when_delivered = when_delivered
        self._when_idle = when_idle
        self._known = fallback.beforehand(config)
        self.offer: option.Offer | None = option.Offer(config) if self._known is None else None
        self._places = Places(config.max_pending_handshakes)
        self.spare: Spare = Spare()
        self.pending: dict[asyncio.Task[None], _Arrival] = {}

    @property
    def best(self) -> str:
        """The path of a client that finds smcfast here, if all goes well."""
        return "smc-d" if "smc-d" in self._config.paths else "smc-r"

    def announce(self, sock: socket.socket) -> list[Registration | Announcement]:
        """Let this listener's clients look for smcfast, if they should."""
        if not self._meets(sock) or "rendezvous" not in self._config.discovery:
            return []
        announced: list[Registration | Announcement] = []
        if not netlink.are_refused():  # a server that cannot look for its clients would only keep them waiting
            announced.append(Registration(self._loop, sock, allowed_uids(self._config), kernel.cookie_within(sock)))
        folder = shared_folder(self._config)
        if folder is not None:
            announced.append(Announcement(folder, sock))
        return announced

    def _meets(self, sock: socket.socket) -> bool:
        """Does the configuration have paths other than the kernel's for connections of this kind?"""
        inet = sock.family in (socket.AF_INET, socket.AF_INET6)
        return inet and self._known is None and bool(set(self._config.paths) - {"kernel"})

    def close(self) -> None:
        """Nobody is received any more, and whose handshake is under way is dropped."""
        for task, arrival in self.pending.items():
            # In the clear, its protocol may know of the connection already, which then goes on as all that are established.
            if not arrival.delivered or self._delivery.tls is not None:
                task.cancel()
        self.spare.close()

    def cancel(self) -> None:
        """Drop the connections that the server does not know yet."""
        for task in self.pending:
            task.cancel()

    def receive(self, conn: socket.socket) -> None:
        """Look for the client's rendezvous at once, then go on in a task."""
        arrival = _Arrival(conn, Clock.start(self._config), self._places.place())
        try:
            if self._meets(conn) and not kernel.carries(conn):
                arrival.caller = Caller(conn, self._config, self._places.full, self.spare)
                arrival.setup = negotiate.greet(arrival.clock, conn, arrival.caller, self._config)
                if arrival.setup is not None:
                    arrival.place.take()
        except BaseException:
            arrival.close()
            raise
        task = self._loop.create_task(self._welcome(arrival))
        self.pending[task] = arrival
        task.add_done_callback(lambda task: self._arrived(task, arrival))

    def _arrived(self, task: asyncio.Task[None], arrival: _Arrival) -> None:
        # A task that is cancelled before its first step never sees its coroutine's own clean-up.
        arrival.close()
        del self.pending[task]
        self._when_idle()

    async def _welcome(self, arrival: _Arrival) -> None:
        try:
            delivered = await self._deliver(arrival)
        except SmcFallbackError:
            return  # It is logged and counted, and the connection is closed.
        except SmcHandshakeError as error:
            fallback.fail(self._config, log.peer(arrival.conn), error.fallback)
            return
        except Exception as error:  # noqa: BLE001 - to the loop's handler, as asyncio does
            # asyncio's rule: clients that vanish, or fail at TLS, are of interest to a debugger only.
            if self._loop.get_debug() or not isinstance(error, OSError):
                message = "Error on transport creation for incoming connection"
                self._loop.call_exception_handler({"message": message, "exception": error})
            return
        if self._when_delivered is not None:
            self._when_delivered(delivered)

    async def _deliver(self, arrival: _Arrival) -> Delivered:
        is_smc = kernel.is_smc(arrival.conn)
        found = self._known or reason("not_inet" if arrival.conn.family not in order.INET else "kernel_smc")
        if is_smc:
            answer = kernel.told(arrival.conn)
            if not isinstance(answer, Fallback):
                return await self._on_socket(arrival, answer)
            found = answer
        if arrival.caller is not None:
            endpoint = await negotiate.as_server(
                arrival.clock, arrival.conn, arrival.caller, arrival.setup, arrival.place, self._config, self.offer
            )
            if not isinstance(endpoint, Fallback):
                return await self._on_ring(arrival, endpoint)
            # Of a client that nobody has announced, the kernel may know more.
            found = found if is_smc and endpoint.name == "peer_plain" else endpoint
        return await self._on_tcp(arrival, found)

    async def _on_ring(self, arrival: _Arrival, endpoint: Endpoint) -> Delivered:
        info = negotiate.describe(arrival.clock, endpoint)
        arrival.delivered = True  # From here on the socket is the transport's, even if it fails.
        return await self._delivery.over_ring(arrival.conn, endpoint, info, arrival.clock.elapsed_us)

    async def _on_tcp(self, arrival: _Arrival, why: Fallback) -> Delivered:
        info = fallback.settle(self._config, "server", log.peer(arrival.conn), why)
        return await self._on_socket(arrival, info)

    async def _on_socket(self, arrival: _Arrival, info: SmcInfo) -> Delivered:
        arrival.delivered = True
        return await self._delivery.over_socket(arrival.conn, info, arrival.clock.elapsed_us)


class _Arrival:
    """One accepted connection until it is delivered to a transport, or closed."""

    def __init__(self, conn: socket.socket, clock: Clock, place: Place) -> None:
        self.conn = conn
        self.clock = clock
        self.place = place
        self.caller: Caller | None = None
        self.setup: ServerSetup | None = None
        self.delivered = False

    def close(self) -> None:
        """Close what no transport has taken over, and leave the place."""
        self.place.leave()
        if self.caller is not None:
            self.caller.close()
        if self.setup is not None:
            self.setup.release()
        if not self.delivered:
            self.conn.close()
