"""A sandbox that refuses what a set-up needs: TCP at both ends, with the reason, and nothing is broken."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

import smcfast
from smcfast import log
from support.addresses import port_of
from support.sandbox import forbid_calls, forbid_sockets, why_no_seccomp

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

pytestmark = pytest.mark.skipif(why_no_seccomp() is not None, reason=str(why_no_seccomp()))


def forbid(what: str) -> None:
    if what.startswith("AF_"):
        forbid_sockets(getattr(socket, what))
    elif what:
        forbid_calls(what)


async def serve(parent: Channel, refused: str) -> list[list[str | None]]:
    """Child: serve until the parent has enough; the paths, each with its reason."""
    paths: list[list[str | None]] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = writer.get_extra_info("smc")
        paths.append([info.path, info.reason])
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100_000):
                writer.write(data)
                await writer.drain()
        writer.close()

    forbid(refused)
    log.logger.setLevel("ERROR")  # that a listener cannot be announced is a warning
    server = await smcfast.start_smc_server(echo, "127.0.0.1", 0)
    parent.send(port_of(server.sockets))
    assert await parent.areceive() == "enough"
    server.close()
    server.close_clients()
    await server.wait_closed()
    return paths


async def connect(parent: Channel, port: int, refused: str) -> list[list[str | None]]:
    """Child: two connections, the second one in the state that the first one has left."""
    forbid(refused)
    paths = []
    for _ in range(2):
        reader, writer = await smcfast.open_smc_connection("127.0.0.1", port)
        writer.write(b"x" * 3_000_000)
        assert await reader.readexactly(3_000_000) == b"x" * 3_000_000
        writer.close()
        await writer.wait_closed()
        info = writer.get_extra_info("smc")
        paths.append([info.path, info.reason])
    return paths


SMC = ("smc-d", None)


def tcp(reason: str) -> tuple[str, str]:
    return ("tcp", reason)


REFUSALS = {
    "client, AF_NETLINK": (tcp("no_sock_diag"), tcp("peer_plain")),
    "client, AF_UNIX": (tcp("refused"), tcp("peer_plain")),
    "client, memfd_create": (tcp("refused"), tcp("peer_stopped")),
    "client, timerfd_create": (tcp("refused"), tcp("peer_stopped")),
    "client, epoll_create1": (tcp("refused"), tcp("peer_stopped")),
    "client, eventfd2": (SMC, SMC),  # the ring does without
    "client, pidfd_open": (SMC, SMC),  # the kernel gives one beside the credentials, else TCP tells of the peer's end
    "server, AF_NETLINK": (tcp("peer_plain"), tcp("no_sock_diag")),
    "server, AF_UNIX": (tcp("peer_plain"), tcp("refused")),
    "server, memfd_create": (tcp("internal_error"), tcp("internal_error")),
    "server, timerfd_create": (tcp("internal_error"), tcp("internal_error")),
    "server, epoll_create1": (tcp("peer_stopped"), tcp("refused")),
    "server, eventfd2": (SMC, SMC),
    "server, pidfd_open": (SMC, SMC),
}
"""What is refused at which end, and what client and server say."""


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_refused_call(spawn: Spawn, loop_kind: str, case: str) -> None:
    side, refused = case.split(", ")
    at_client, at_server = REFUSALS[case]
    server = spawn(serve, refused if side == "server" else "", loop=loop_kind)
    port = await server.areceive()
    client = spawn(connect, port, refused if side == "client" else "", loop=loop_kind)
    assert await client.aresult() == [list(at_client)] * 2
    server.send("enough")
    heard = await server.aresult()
    if at_server == tcp("peer_stopped"):  # or the client had closed its door before the server came
        heard = [list(at_server) if each == ["tcp", "peer_plain"] else each for each in heard]
    assert heard == [list(at_server)] * 2
