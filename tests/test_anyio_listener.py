"""The listener of the adapter for anyio, held to what anyio's own for TCP does, as test_anyio.py does it with streams."""

from __future__ import annotations

import socket
from typing import Any

import anyio
import pytest
from anyio.abc import Listener, SocketAttribute
from anyio.streams.tls import TLSListener, TLSStream

from support import tls
from support.addresses import why_unusable
from support.anyio import KINDS, OURS, accept, connect, family_of, listen, one, received, rest
from support.streams import eventually


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=OURS)
def path(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["127.0.0.1", "::1"])
def number(request: pytest.FixtureRequest) -> str:
    host: str = request.param
    if reason := why_unusable(host):
        pytest.skip(reason)
    return host


async def test_the_attributes_of_a_listener(kind: str, number: str) -> None:
    async with await listen(kind, number) as listener:
        assert isinstance(listener, Listener)
        sock = listener.extra(SocketAttribute.raw_socket)
        assert listener.extra(SocketAttribute.family) == family_of(number)
        assert listener.extra(SocketAttribute.local_address) == sock.getsockname()[:2]
        assert listener.extra(SocketAttribute.local_port) == sock.getsockname()[1]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        for missing in (SocketAttribute.remote_address, SocketAttribute.remote_port):
            with pytest.raises(anyio.TypedAttributeLookupError):
                one(listener).extra(missing)


async def test_two_tasks_cannot_accept(kind: str) -> None:
    async with await listen(kind, "127.0.0.1") as listener:
        async with anyio.create_task_group() as group:
            group.start_soon(one(listener).accept)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(anyio.BusyResourceError, match="accepting"):
                await one(listener).accept()
            group.cancel_scope.cancel()


async def test_an_accept_that_is_cancelled_loses_no_connection(kind: str) -> None:
    async with await listen(kind, "127.0.0.1") as listener:
        for _ in range(10):
            with anyio.move_on_after(0.001):
                await one(listener).accept()
        async with await connect(kind, "127.0.0.1", listener.extra(SocketAttribute.local_port)) as client:
            async with await accept(kind, listener) as server:
                await client.send(b"x")
                assert await server.receive() == b"x"


@pytest.mark.parametrize("own_group", [True, False])
async def test_a_listener_serves(kind: str, number: str, own_group: bool) -> None:
    async def shout(stream: Any) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data.upper())

    async with await listen(kind, number) as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, shout, *([] if own_group else [group]))
        for _ in range(3):
            async with await connect(kind, number, listener.extra(SocketAttribute.local_port)) as client:
                await client.send(b"hello")
                assert await received(client, 5) == b"HELLO"
        group.cancel_scope.cancel()


async def test_a_listener_closed_elsewhere_ends_its_serve(kind: str) -> None:
    listener = await listen(kind, "127.0.0.1")
    result: list[Any] = []

    async def serve() -> None:
        try:
            await listener.serve(lambda _: None)
        except BaseExceptionGroup as error:
            result.append(error.subgroup(anyio.ClosedResourceError))

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        await anyio.wait_all_tasks_blocked()
        await listener.aclose()
        await eventually(lambda: bool(result))
    assert result != [None]


async def test_a_closed_listener_accepts_nothing(kind: str) -> None:
    listener = await listen(kind, "127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    await listener.aclose()
    await listener.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await one(listener).accept()
    with pytest.raises(OSError):  # noqa: PT011 - their words differ
        await connect(kind, "127.0.0.1", port)


async def test_both_families_have_one_port(kind: str) -> None:
    if reason := why_unusable("::1"):
        pytest.skip(reason)
    async with await listen(kind, None) as listener, anyio.create_task_group() as group:
        came: list[Any] = []

        async def note(stream: Any) -> None:
            came.append(stream.extra(SocketAttribute.local_address)[1])
            await stream.aclose()

        group.start_soon(listener.serve, note)
        port = listener.extra(SocketAttribute.local_port)
        for target in ("127.0.0.1", "::1"):
            async with await connect(kind, target, port):
                pass
        await eventually(lambda: came == [port, port])
        group.cancel_scope.cancel()


async def test_a_port_is_shared_where_both_want_it(kind: str, number: str) -> None:
    first = await listen(kind, number, reuse_port=True)
    port = first.extra(SocketAttribute.local_port)
    second = await listen(kind, number, reuse_port=True, local_port=port)
    assert second.extra(SocketAttribute.local_port) == port
    await first.aclose()
    await second.aclose()
    async with await listen(kind, number) as taken:
        with pytest.raises(OSError, match="in use"):
            await listen(kind, number, local_port=taken.extra(SocketAttribute.local_port))


async def test_connections_beyond_the_backlog_are_reset(path: str) -> None:
    async with await listen(path, "127.0.0.1", backlog=2) as listener:
        port = listener.extra(SocketAttribute.local_port)
        clients = [await connect(path, "127.0.0.1", port) for _ in range(3)]
        with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
            await clients[2].receive()
        for client in clients[:2]:
            async with client, await accept(path, listener) as server:
                await client.send(b"x")
                assert await server.receive() == b"x"
        await clients[2].aclose()


async def test_connections_that_nobody_accepted_end_with_the_listener(path: str) -> None:
    listener = await listen(path, "127.0.0.1")
    async with await connect(path, "127.0.0.1", listener.extra(SocketAttribute.local_port)) as client:
        await eventually(lambda: listener._waiting._get.statistics().current_buffer_used == 1)
        await listener.aclose()
        with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
            await client.receive()


async def test_a_tls_listener_on_top(kind: str) -> None:
    async def shout(stream: Any) -> None:
        async with stream:
            await stream.send((await stream.receive()).upper())

    async with await listen(kind, "127.0.0.1") as listener, anyio.create_task_group() as group:
        secured = TLSListener(listener, tls.server_context())
        group.start_soon(secured.serve, shout)
        client = await connect(kind, "127.0.0.1", listener.extra(SocketAttribute.local_port))
        async with await TLSStream.wrap(client, hostname="localhost", ssl_context=tls.client_context()) as secure:
            await secure.send(b"hello")
            assert await rest(secure) == b"HELLO"
        group.cancel_scope.cancel()
