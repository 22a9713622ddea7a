"""Takes connections through their set-up: the core's steps, and the waits between them.

The core carries the CLC handshake over TCP, and memory and doorbells over the rendezvous connection; see
docs/private-protocols.md. What is here waits for sockets, and makes the rendezvous connections of assumed peers.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from smcfast import _native
from smcfast.errors import Fallback, SmcHandshakeError
from smcfast.reasons import DECLINED_MEMORY, DECLINED_NO_DEVICE, diagnosis, explained, reason, trouble

if _native.AVAILABLE:
    from smcfast._loop import current

if TYPE_CHECKING:
    import socket

    from smcfast._core import ClientSetup, ServerSetup
    from smcfast.assume import Door


class Setup(Protocol):
    """What both ends' set-ups have in common."""

    def step(self, now: float) -> tuple[list[int], list[int], float] | None:
        """Go on: what must be readable or writable before the next step, and until when; None when it is over."""

    def release(self) -> None:
        """Let go of both sockets."""

    def outcome(self) -> tuple[str, int, str] | None:
        """How it has ended."""


class AssumedCaller(Protocol):
    """Finds the rendezvous connection of a client by the engine that its Proposal names."""

    def call(self, engine: bytes, /) -> socket.socket | None:
        """The connection, None when there is none that may be trusted; OSError when none can be had here."""


async def _ready(wait: tuple[list[int], list[int], float], spin: float = 0.0) -> None:
    """Wait for what a step asks for.

    :raises SmcHandshakeError: the kernel watches no more descriptors.
    """
    try:
        await current().ready(*wait, spin)
    except OSError as error:
        raise SmcHandshakeError(
            explained("handshake_failed", f"nothing can be waited for: {error.strerror}")
        ) from error


async def run(setup: Setup, spin: float) -> Fallback | None:
    """Go through the handshake with a peer that was met; None when the ring is established.

    :param spin: seconds to look for the peer's next word before sleeping.
    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    try:
        while (wait := setup.step(monotonic())) is not None:
            await _ready(wait, spin)
        return _judge(setup)
    finally:
        setup.release()


async def as_assuming_client(setup: ClientSetup, door: Door | None) -> Fallback | None:
    """Propose without a rendezvous; the server, if it is one, calls at `door` for the memory.

    :param door: None when no memory is offered.

    :raises SmcHandshakeError: the peer does not speak CLC, or broke off.
    """
    try:
        await _propose(setup, door)
        why = _judge(setup)
    finally:
        setup.release()
    # The door is closed where no descriptor was left to let the server in, which then declined.
    return why if why is None or door is None or door.watched else reason("resources")


async def _propose(setup: ClientSetup, door: Door | None) -> None:
    is_met = False
    while (wait := setup.step(monotonic())) is not None:
        readable, writable, until = wait
        callers = () if door is None or is_met else door.watched
        await _ready(([*readable, *(sock.fileno() for sock in callers)], writable, until))
        if door is not None and not is_met and (conn := door.caller()) is not None:
            is_met = True
            setup.meet(conn.detach(), until)


async def as_assumed_server(setup: ServerSetup, caller: AssumedCaller) -> Fallback | None:
    """Answer the Proposal that the stream begins with; `caller` finds its client's door.

    :raises SmcHandshakeError: handshake bytes are left in the TCP stream.
    """
    try:
        while (wait := setup.step(monotonic())) is not None:
            client = setup.wants_meeting()
            if client is None:
                await _ready(wait)
            else:
                _meet(setup, caller, client, wait[2])
        return _judge(setup)
    finally:
        setup.release()


def _meet(setup: ServerSetup, caller: AssumedCaller, client: bytes, until: float) -> None:
    """Call the client that has proposed; where that cannot be done SMC-R is left, if it offers that too."""
    try:
        conn = caller.call(client)
    except OSError:
        setup.decline(DECLINED_MEMORY, monotonic())
        return
    if conn is None:
        setup.pass_over_memory(DECLINED_NO_DEVICE, monotonic())
    else:
        setup.meet(conn.detach(), until)


def _judge(setup: Setup) -> Fallback | None:
    outcome = setup.outcome()
    assert outcome is not None
    kind, code, text = outcome
    if kind == "established":
        return None
    if kind == "declined":
        return diagnosis(code, text)
    if kind == "system":
        return trouble(OSError(code, os.strerror(code)))
    if kind == "failed":
        raise SmcHandshakeError(explained("handshake_failed", text))
    return explained(kind, text)
