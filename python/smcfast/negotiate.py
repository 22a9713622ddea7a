"""From a connected TCP socket to an endpoint on the ring, or the reason why it stays TCP: discovery, then handshake."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from smcfast import _native, assume, handshake, option, remembered, ways
from smcfast.errors import Fallback, SmcHandshakeError
from smcfast.info import SmcInfo
from smcfast.reasons import DECLINED_MEMORY, LOCAL, explained, reason, trouble
from smcfast.ways import MEMORY, Ways

if _native.AVAILABLE:
    from smcfast import _core
    from smcfast._loop import current

if TYPE_CHECKING:
    import socket

    from smcfast._core import ClientSetup, Endpoint, ServerSetup
    from smcfast.config import SmcConfig
    from smcfast.discovery import Caller, Invitation
    from smcfast.option import Offer
    from smcfast.places import Place

DISCOVERY_SHARE: Final = 0.75
"""The part of the handshake time-out that discovery may use up: a client that decides late still has time for the
exchange, which would spoil the stream if it were given up."""
CLIENT_SHARE: Final = 0.875
"""The part of it that a client has for all: what it sends last still reaches its server in time."""


def spin(config: SmcConfig) -> float:
    """Seconds for which a handshake looks for the peer's next word before it sleeps.

    Twice as long as for data: what the peer does meanwhile takes 50 to 100 microseconds.
    """
    return 2 * config.spin_us / 1e6


@dataclass(frozen=True)
class Clock:
    """One connection's time-out, for discovery and handshake together. Moments are those of `time.monotonic`."""

    timeout: float
    """Seconds."""
    begun: float
    """When the user's wait began."""
    started: float
    """When the time-out began."""

    @classmethod
    def start(cls, config: SmcConfig) -> Clock:
        """Both begin now."""
        now = monotonic()
        return cls(config.handshake_timeout, now, now)

    def restarted(self) -> Clock:
        """The time-out begins anew, as for a client whose TCP connection is there; the user's wait does not."""
        return replace(self, started=monotonic())

    @property
    def discovery_deadline(self) -> float:
        """Until when the peer may decide."""
        return self.started + DISCOVERY_SHARE * self.timeout

    def left(self, now: float, share: float = 1.0) -> float:
        """Seconds that the handshake still has of `share` of the time-out."""
        return max(self.started + share * self.timeout - now, 0.0)

    def elapsed_us(self) -> int:
        """Microseconds of the user's wait so far."""
        return round((monotonic() - self.begun) * 1e6)


async def as_client(
    clock: Clock, tcp: socket.socket, invitation: Invitation, config: SmcConfig, host: str | None
) -> Endpoint | Fallback:
    """The client's way, after connect; closes the invitation.

    :param host: the peer's name as the user wrote it.
    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    found = await _invited(clock, tcp, invitation, config)
    if not isinstance(found, Fallback) or _has_spoken(found):
        return found
    why = invitation.mark.answer(tcp, found)
    if why is None:
        try:
            return await announced(clock, tcp, config)
        except SmcHandshakeError as error:
            if error.fallback.name == "handshake_failed":
                invitation.mark.remember()
            raise
    return await assuming(clock, tcp, config, host, why) if assume.may_assume(found, assume.CLIENT_KNOWS) else why


def _has_spoken(why: Fallback) -> bool:
    """Did the connection become TCP in a CLC handshake, so that there is no second one?"""
    return why.name != "peer_plain" and why.code >> 16 != LOCAL


async def connected(clock: Clock, tcp: socket.socket, config: SmcConfig) -> Endpoint | Fallback:
    """The client's way over a socket that the caller has connected; errors as for `as_client`."""
    why = option.outcome(tcp, reason("sock_given"))
    return await announced(clock, tcp, config) if why is None else await assuming(clock, tcp, config, None, why)


async def announced(clock: Clock, tcp: socket.socket, config: SmcConfig) -> Endpoint | Fallback:
    """Propose to a peer that has announced SMC by the TCP option; it expects that now, and nothing else.

    :raises SmcHandshakeError: it does not speak SMC, and the stream is spoiled.
    """
    try:
        return await _proposing(clock, tcp, config, _ways_to(tcp, config))
    except SmcHandshakeError as error:
        text = f"{error.fallback.text}; the peer answered the TCP option, does it speak SMC?"
        raise SmcHandshakeError(error.fallback._replace(text=text)) from None


async def _invited(clock: Clock, tcp: socket.socket, invitation: Invitation, config: SmcConfig) -> Endpoint | Fallback:
    setup = None
    try:
        if invitation.why is None:
            mine = ways.of(tcp, config)
            if mine.nothing is not None:
                return mine.nothing  # The closed door tells the server.
            try:
                # Until the server has accepted and called there is time to make the own memory.
                setup = client_setup(clock, tcp, config, mine)
            except OSError as error:
                return trouble(error)
        answer = await invitation.answer(tcp, clock.discovery_deadline, spin(config))
        invitation.close()
        if isinstance(answer, Fallback):
            return answer
        assert setup is not None
        setup.meet(answer.detach(), clock.discovery_deadline)
        return _confirmed(clock, setup, await handshake.run(setup, spin(config)), config)
    finally:
        invitation.close()
        if setup is not None:
            setup.release()


def _confirmed(clock: Clock, setup: ClientSetup, why: Fallback | None, config: SmcConfig) -> Endpoint | Fallback:
    """The client's end of a handshake that came to `why`.

    :raises SmcHandshakeError: it has confirmed, and cannot know whether that came in time: it was stopped meanwhile.
    """
    if why is not None:
        return why
    if not clock.left(monotonic()):
        raise SmcHandshakeError(explained("handshake_failed", "this process was stopped until the time was over"))
    return setup.finish(config.spin_us)


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
    mine = _ways_to(tcp, config)
    if mine.nothing is not None:
        return mine.nothing
    try:
        return await _proposing(clock, tcp, config, mine)
    except SmcHandshakeError as error:
        remembered.destinations.add((address, port))
        text = f"{error.fallback.text}; does the peer speak SMC? check assume"
        raise SmcHandshakeError(error.fallback._replace(text=text)) from None


def _ways_to(tcp: socket.socket, config: SmcConfig) -> Ways:
    """The ways to a peer that no rendezvous was had with: memory only if it may be on this host."""
    mine = ways.of(tcp, config)
    return mine if mine.memory and ways.is_here(tcp) else ways.without_memory(mine)


async def _proposing(clock: Clock, tcp: socket.socket, config: SmcConfig, mine: Ways) -> Endpoint | Fallback:
    """Propose without a rendezvous, or decline where there is nothing to propose.

    :raises SmcHandshakeError: the peer does not speak CLC, or broke off.
    """
    door = None
    try:
        try:
            door = assume.Door(current().core.id, tcp, config) if mine.memory else None
            setup = client_setup(clock, tcp, config, mine)
        except OSError as error:
            mine = ways.without_memory(mine, trouble(error))
            setup = _scarce_setup(clock, tcp, config, mine)
        why = await handshake.as_assuming_client(setup, door if mine.memory else None)
    finally:
        if door is not None:
            door.close()
    # A Decline of one's own, for a lack of anything to propose, says less than what is lacking.
    return _confirmed(clock, setup, why if why is None else mine.nothing or why, config)


def _scarce_setup(clock: Clock, tcp: socket.socket, config: SmcConfig, mine: Ways) -> ClientSetup:
    """A set-up that needs hardly anything, for a peer that must have an answer.

    :raises SmcHandshakeError: not even that can be had.
    """
    try:
        return client_setup(clock, tcp, config, mine)
    except OSError as error:
        why = explained("handshake_failed", f"nothing could be proposed: {error.strerror}")
        raise SmcHandshakeError(why) from error


async def as_server(
    clock: Clock,
    tcp: socket.socket,
    caller: Caller,
    setup: ServerSetup | None,
    place: Place,
    config: SmcConfig,
    offer: Offer | None = None,
) -> Endpoint | Fallback:
    """The server's way, after `greet`; closes the caller.

    :param place: is taken already where there is a setup, and otherwise when a client without a rendezvous proposes.
    :param offer: what the listener's SYN/ACKs say.
    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    why: Fallback | None = caller.why or reason("peer_plain")
    try:
        if setup is not None:
            why = await handshake.run(setup, spin(config))
            if why is None:
                return setup.finish(config.spin_us)
    finally:
        caller.close()
    assert why is not None
    if _has_spoken(why):
        return why
    told = why if offer is None else offer.answer(tcp, why)
    if told is None:
        return await _proposed(clock, tcp, place, config, reason("option_unanswered"))
    if assume.may_assume(why, assume.SERVER_KNOWS) and config.assumes(None, *tcp.getsockname()[:2]):
        return await _proposed(clock, tcp, place, config, told)
    return told


async def _proposed(
    clock: Clock, tcp: socket.socket, place: Place, config: SmcConfig, otherwise: Fallback
) -> Endpoint | Fallback:
    """Answer the Proposal of a client without a rendezvous; `otherwise` is the reason when it makes none."""
    if not await assume.proposes(tcp, clock.discovery_deadline):
        return otherwise
    return await _answering(clock, tcp, place, config)


async def _answering(clock: Clock, tcp: socket.socket, place: Place, config: SmcConfig) -> Endpoint | Fallback:
    """Answer the Proposal that a client without a rendezvous has made, if only by a Decline.

    :param place: is taken here.
    :raises SmcHandshakeError: the client does not speak it after all, or broke off, and the stream is spoiled.
    """
    mine = ways.of(tcp, config)
    try:
        setup = server_setup(clock, tcp, config, mine)
        caller = assume.Caller(tcp, config)
    except OSError as error:
        # The Proposal must not reach the application, and there is nobody to decline it.
        why = explained("handshake_failed", f"a Proposal could not be answered: {error.strerror}")
        raise SmcHandshakeError(why) from error
    busy = not place.take()
    if busy:
        setup.decline(DECLINED_MEMORY, monotonic())
    found = await handshake.as_assumed_server(setup, caller)
    if found is None:
        return setup.finish(config.spin_us)
    return reason("limit") if busy else mine.nothing or found


def greet(clock: Clock, tcp: socket.socket, caller: Caller, config: SmcConfig) -> ServerSetup | None:
    """Say Hello to the client that `caller` has reached, at once: it counts 50 ms from accept. None when it is TCP."""
    if caller.conn is None:
        return None
    mine = ways.of(tcp, config)
    if mine.nothing is not None:
        caller.refuse(mine.nothing)
        return None
    try:
        setup = server_setup(clock, tcp, config, mine)
    except OSError as error:
        caller.refuse(trouble(error))
        return None
    conn = caller.give_away()
    if conn is None or not setup.meet(conn, clock.discovery_deadline):
        caller.refuse(reason("peer_stopped"))
        return None
    return setup


def client_setup(clock: Clock, tcp: socket.socket, config: SmcConfig, mine: Ways = MEMORY) -> ClientSetup:
    """The core's set-up of a client of the running loop.

    :raises OSError: no memory or descriptors are left.
    """
    now = monotonic()
    left = clock.left(now, CLIENT_SHARE)
    return _core.ClientSetup(
        current().core, tcp.fileno(), config.rmb_size, now, left, config.preallocate, mine.memory, mine.rdma
    )


def server_setup(clock: Clock, tcp: socket.socket, config: SmcConfig, mine: Ways = MEMORY) -> ServerSetup:
    """The core's set-up of a server of the running loop; errors as for `client_setup`."""
    now = monotonic()
    left = clock.left(now)
    return _core.ServerSetup(
        current().core, tcp.fileno(), config.rmb_size, now, left, config.preallocate, mine.memory, mine.rdma
    )


def timed(clock: Clock, info: SmcInfo) -> SmcInfo:
    """`info` of a connection that is ready now."""
    return replace(info, setup_us=clock.elapsed_us())


def describe(clock: Clock, endpoint: Endpoint) -> SmcInfo:
    """What `endpoint` tells its user."""
    return SmcInfo(setup_us=clock.elapsed_us(), read_counters=endpoint.counters, **endpoint.description())
