"""Peers that are gone before the set-up began, and ends that have no descriptor left for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, _loop, assume, negotiate, netlink, remembered, rendezvous
from smcfast.discovery import Caller, Invitation
from smcfast.registration import Registration
from support.addresses import listening
from support.echo import echoing, talk
from support.process import abstract_names, descriptors, no_more_descriptors
from support.steered import steered
from support.streams import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = SmcConfig()
ASSUMED = SmcConfig(assume=("*:*",))
ONLY = SmcConfig(assume=("*:*",), discovery=())


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    remembered.listeners._until.clear()
    remembered.destinations._until.clear()
    yield
    assert abstract_names() == set()


def reset(conn: socket.socket) -> None:
    """Close so that the other end is reset."""
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
    conn.close()


@pytest.mark.parametrize("announced", [False, True])
async def test_a_server_that_is_gone_before_the_client_looks(announced: bool) -> None:
    loop = asyncio.get_running_loop()
    with listening("127.0.0.1") as (listeners, _), socket.socket() as tcp, contextlib.ExitStack() as stack:
        if announced:
            listeners[0].setblocking(False)
            stack.enter_context(contextlib.closing(Registration(loop, listeners[0])))
        tcp.setblocking(False)
        target = listeners[0].getsockname()
        with contextlib.closing(Invitation(tcp, target, CONFIG)) as invitation:
            assert (invitation.why is None) == announced
            await loop.sock_connect(tcp, target)
            conn, _ = await asyncio.get_running_loop().sock_accept(listeners[0])
            reset(conn)
            answer = await invitation.answer(tcp, loop.time() + 5)
            assert getattr(answer, "name", answer) == "peer_plain"


@pytest.mark.parametrize("config", [CONFIG, ASSUMED], ids=["discovered", "assumed"])
async def test_a_server_that_resets_the_connection(config: SmcConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with asyncio: there is a stream, and it tells what happened."""
    real = Invitation.answer
    with listening("127.0.0.1") as (listeners, port):
        listeners[0].setblocking(False)

        async def answer(invitation: Invitation, *args: Any) -> Any:
            conn, _ = await asyncio.get_running_loop().sock_accept(listeners[0])
            reset(conn)
            return await real(invitation, *args)

        monkeypatch.setattr(Invitation, "answer", answer)
        reader, writer = await smcfast.open_smc_connection("127.0.0.1", port, config=config)
        assert writer.get_extra_info("smc").reason == "peer_plain"
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_client_that_is_gone_before_it_is_accepted() -> None:
    with listening("127.0.0.1") as (listeners, port):
        reset(socket.create_connection(("127.0.0.1", port), timeout=5))
        conn, _ = listeners[0].accept()
        with conn, contextlib.closing(Caller(conn, CONFIG, busy=False)) as caller:
            assert caller.why is not None
            assert caller.why.name == "peer_plain"


def proposal() -> bytes:
    """What a client says that assumes."""
    with steered() as client:
        return client.says()


async def test_a_client_that_proposes_and_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """Its Proposal is no application bytes: the connection ends, and the server says why."""
    asyncio.get_running_loop().set_debug(True)  # asyncio and smcfast tell then what they keep to themselves otherwise
    caplog.set_level("INFO", "smcfast")
    async with echoing(config=ONLY) as server:
        with socket.create_connection(server.sockets[0].getsockname(), timeout=5) as tcp:
            tcp.sendall(proposal())
            reset(tcp)
        await eventually(lambda: "is closed" in caplog.text)
        assert "handshake_failed" in caplog.text
        assert await talk(*await smcfast.open_smc_connection(*server.sockets[0].getsockname(), config=ONLY)) == (
            "smc-d",
            None,
        )


async def test_a_server_without_descriptors_for_its_first_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot even decline what was proposed: it ends the connection, and the client opens a plain one."""
    caplog.set_level("INFO", "smcfast")
    scarce = True

    def no_engine(*_: Any) -> Any:
        raise OSError(24, "Too many open files")

    plain = negotiate.server_setup
    monkeypatch.setattr(negotiate, "server_setup", lambda *args: no_engine() if scarce else plain(*args))
    async with echoing(config=ONLY) as server:
        target = server.sockets[0].getsockname()
        opened = await smcfast.open_smc_connection(*target, config=ONLY)
        assert await talk(*opened) == ("tcp", "handshake_failed")
        assert "a Proposal could not be answered: Too many open files" in caplog.text
        scarce = False
        remembered.destinations._until.clear()
        assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("smc-d", None)


async def test_an_assuming_client_without_descriptors_for_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The door has somebody, and nobody can be let in: it is closed, the server declines, and the stream goes on."""
    real = assume.Door.caller
    looks = 0

    def starved(door: assume.Door) -> socket.socket | None:
        nonlocal looks
        looks += 1
        with no_more_descriptors():
            return real(door)

    monkeypatch.setattr(assume.Door, "caller", starved)
    async with echoing(config=ONLY) as server:
        target = server.sockets[0].getsockname()
        assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("tcp", "resources")
    assert looks < 10, "the door was ready all the time"


async def test_assumed_clients_are_capped() -> None:
    """One that has proposed and goes no further takes the only place; the next one is declined, and is TCP."""
    config = SmcConfig(assume=("*:*",), discovery=(), max_pending_handshakes=1)
    loop = asyncio.get_running_loop()
    async with echoing(config=config) as server:
        target = server.sockets[0].getsockname()
        with socket.socket() as tcp, steered() as client:
            tcp.setblocking(False)
            await loop.sock_connect(tcp, target)
            with contextlib.closing(assume.Door(_loop.engine().core.id, tcp, ONLY)) as door:
                await loop.sock_sendall(tcp, client.says())
                await rendezvous.readable(door.watched, loop.time() + 5)
                conn = door.caller()
                assert conn is not None
                with conn:
                    opened = await smcfast.open_smc_connection(*target, config=ONLY)
                    assert await talk(*opened) == ("tcp", "out_of_memory")
                    assert smcfast.stats()["fallbacks"]["limit"] > 0
        # It has gone, and its place is free again.
        await eventually(lambda: not server._welcome.pending)
        assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("smc-d", None)


async def test_a_client_without_descriptors_for_the_question_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first look-up has found something, a client asks for itself; that it cannot is no error of the user's."""
    async with echoing(config=CONFIG) as server:
        target = server.sockets[0].getsockname()
        loop = asyncio.get_running_loop()
        with socket.socket() as tcp:
            tcp.setblocking(False)
            with contextlib.closing(Invitation(tcp, target, SmcConfig(allow_uids=()))) as invitation:
                await loop.sock_connect(tcp, target)
                invitation.why = smcfast.reasons.reason("peer_plain")
                monkeypatch.setattr(netlink, "_worked", False)
                netlink._forget_after_fork()
                before = descriptors()
                with no_more_descriptors():
                    answer = await invitation.answer(tcp, loop.time() + 5)
                assert getattr(answer, "name", answer) == "resources"
                assert descriptors().items() <= before.items()
