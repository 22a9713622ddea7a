"""From a connected TCP socket to an endpoint on the ring, or the reason why it stays TCP: discovery, then handshake."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from smcfast import assume, handshake, remembered, rendezvous
from smcfast.errors import Fallback, SmcHandshakeError
from smcfast.info import SmcInfo
from smcfast.reasons import DECLINED_MEMORY, explained, reason, trouble

if TYPE_CHECKING:
    import asyncio
    import socket

    from smcfast._core import ClientSetup, Endpoint, Engine, ServerSetup
    from smcfast.config import SmcConfig
    from smcfast.discovery import Caller, Invitation
    from smcfast.places import Place

DISCOVERY_SHARE: Final = 0.75
"""The part of the handshake time-out that discovery may use up: a client that decides late still has time for the
exchange, which would spoil the stream if it were given up."""
CLIENT_SHARE: Final = 0.875
"""The part of it that a client has for all: what it sends last still reaches its server in time."""


@dataclass(frozen=True)
class Clock:
    """One connection's time-out: discovery and handshake together, in loop time."""

    loop: asyncio.AbstractEventLoop
    started: float
    timeout: float
    begun: float
    """When the user's wait began, by `time.perf_counter`: uvloop's time has milliseconds only."""
    since: float
    """When the time-out began, by `time.perf_counter`: uvloop's time stands still while a callback runs."""

    @classmethod
    def start(cls, loop: asyncio.AbstractEventLoop, config: SmcConfig) -> Clock:
        """Both times begin now."""
        now = time.perf_counter()
        return cls(loop, loop.time(), config.handshake_timeout, now, now)

    def restarted(self) -> Clock:
        """The time-out begins anew, as for a client whose TCP connection is there; the user's wait does not."""
        return replace(self, started=self.loop.time(), since=time.perf_counter())

    @property
    def discovery_deadline(self) -> float:
        """Loop time until which the peer may decide."""
        return self.started + DISCOVERY_SHARE * self.timeout

    def left(self, now: float, share: float = 1.0) -> float:
        """Seconds that the handshake still has of `share` of the time-out."""
        return max(self.started + share * self.timeout - now, 0.0)

    def is_late(self) -> bool:
        """Is a client's time over, whatever the loop's clock says?"""
        return time.perf_counter() - self.since >= CLIENT_SHARE * self.timeout

    def elapsed_us(self) -> int:
        """Microseconds of the user's wait so far."""
        return round((time.perf_counter() - self.begun) * 1e6)


async def as_client(
    clock: Clock, tcp: socket.socket, invitation: Invitation, config: SmcConfig, host: str | None
) -> Endpoint | Fallback:
    """The client's way, after connect; closes the invitation.

    :param host: the peer's name as the user wrote it.
    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    try:
        answer = await invitation.answer(clock.loop, tcp, clock.discovery_deadline)
    finally:
        invitation.close()
    found: Endpoint | Fallback
    if isinstance(answer, Fallback):
        found = answer
    else:
        with answer:
            found = await _invited(clock, tcp, answer, config)
    if isinstance(found, Fallback) and assume.may_assume(found, assume.CLIENT_KNOWS):
        return await assuming(clock, tcp, config, host, found)
    return found


async def _invited(clock: Clock, tcp: socket.socket, conn: socket.socket, config: SmcConfig) -> Endpoint | Fallback:
    try:
        setup = client_setup(clock, config)
    except OSError as error:
        return trouble(error)
    why = await handshake.as_client(clock.loop, tcp, conn, setup, clock.discovery_deadline, clock.is_late)
    return setup.finish(config.spin_us) if why is None else why


async def assuming(
    clock: Clock, tcp: socket.socket, config: SmcConfig, host: str | None, otherwise: Fallback
) -> Endpoint | Fallback:
    """Propose to a peer that is assumed to speak SMC; `otherwise` is the reason for TCP when this one is not.

    :raises SmcHandshakeError: it does not, and the stream is spoiled; the destination is remembered.
    """
    try:
        address, port = tcp.getpeername()[:2]
    except OSError:
        return otherwise  # The peer has gone already.
    if not config.assumes(host, address, port):
        return otherwise
    if (address, port) in remembered.destinations:
        return reason("destination_remembered")
    try:
        setup = client_setup(clock, config)
        door = assume.Door(_loop_engine().id, tcp, config)
    except OSError as error:
        return trouble(error)
    try:
        why = await handshake.as_assuming_client(clock.loop, tcp, door, setup, clock.is_late)
    except SmcHandshakeError as error:
        remembered.destinations.add((address, port))
        text = f"{error.fallback.text}; does the peer speak SMC? check assume"
        raise SmcHandshakeError(error.fallback._replace(text=text)) from None
    finally:
        door.close()
    return setup.finish(config.spin_us) if why is None else why


async def as_server(
    clock: Clock, tcp: socket.socket, caller: Caller, setup: ServerSetup | None, place: Place, config: SmcConfig
) -> Endpoint | Fallback:
    """The server's way, after `greet`; closes the caller.

    :param place: is taken already where there is a setup, and otherwise when an assumed client proposes.
    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    why: Fallback | None = caller.why or reason("peer_plain")
    try:
        if caller.conn is not None and setup is not None:
            why = await handshake.as_server(clock.loop, tcp, caller.conn, setup, clock.discovery_deadline)
            if why is None:
                return setup.finish(config.spin_us)
    finally:
        caller.close()
    assert why is not None
    return await _assumed(clock, tcp, place, config, why) if assume.may_assume(why, assume.SERVER_KNOWS) else why


async def _assumed(
    clock: Clock, tcp: socket.socket, place: Place, config: SmcConfig, otherwise: Fallback
) -> Endpoint | Fallback:
    if not config.assumes(None, *tcp.getsockname()[:2]):
        return otherwise
    if not await assume.proposes(clock.loop, tcp, clock.discovery_deadline):
        return otherwise
    try:
        setup = server_setup(clock, config)
        caller = assume.Caller(tcp, config)
    except OSError as error:
        # The Proposal must not reach the application, and there is nobody to decline it.
        why = explained("handshake_failed", f"a Proposal could not be answered: {error.strerror}")
        raise SmcHandshakeError(why) from error
    busy = not place.take()
    if busy:
        setup.decline(DECLINED_MEMORY, clock.loop.time())
    found = await handshake.as_assumed_server(clock.loop, tcp, setup, caller)
    if found is None:
        return setup.finish(config.spin_us)
    return reason("limit") if busy else found


def greet(clock: Clock, caller: Caller, config: SmcConfig) -> ServerSetup | None:
    """Send HELLO to the client that `caller` has reached, at once: it counts 50 ms from accept. None when it is TCP."""
    if caller.conn is None:
        return None
    try:
        setup = server_setup(clock, config)
    except OSError as error:
        caller.refuse(trouble(error))
        return None
    if not rendezvous.send_frame(caller.conn, setup.hello()):
        caller.refuse(reason("peer_stopped"))
        return None
    return setup


def client_setup(clock: Clock, config: SmcConfig) -> ClientSetup:
    """The core's machine for a client of the running loop.

    :raises OSError: no memory or descriptors are left.
    """
    from smcfast import _core  # Only where the core is: see smcfast._native.

    now = clock.loop.time()
    return _core.ClientSetup(_loop_engine(), config.rmb_size, now, clock.left(now, CLIENT_SHARE), config.preallocate)


def server_setup(clock: Clock, config: SmcConfig) -> ServerSetup:
    """The core's machine for a server of the running loop; errors as for `client_setup`."""
    from smcfast import _core

    now = clock.loop.time()
    return _core.ServerSetup(_loop_engine(), config.rmb_size, now, clock.left(now), config.preallocate)


def _loop_engine() -> Engine:
    from smcfast import _loop

    return _loop.engine().core


def describe(clock: Clock, endpoint: Endpoint) -> SmcInfo:
    """What `endpoint` tells its user."""
    return SmcInfo(path="smc-d", setup_us=clock.elapsed_us(), read_counters=endpoint.counters, **endpoint.description())
