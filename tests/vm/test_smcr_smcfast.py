"""Two smcfast processes over software RoCE: each a host of its own, assumed to speak SMC."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from vm.support import network
from vm.support.hosts import A, B
from vm.support.ours import HANDSHAKE_TIMEOUT
from vm.support.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel
    from vm.support.forked import ForkedChild

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

RMB = 65536
SIZES = (1, 64, 16383, 16384, 16385, 65535, 65536, 65537, 1 << 20)
SEED = 23


def config(**settings: Any) -> smcfast.SmcConfig:
    chosen: dict[str, Any] = {
        "fallback": "forbid",
        "rmb_size": RMB,
        "handshake_timeout": HANDSHAKE_TIMEOUT,
        **settings,
    }
    return smcfast.SmcConfig(paths=("smc-r",), discovery=(), assume=("*:*",), **chosen)


async def serve(parent: Channel, address: str, settings: dict[str, Any]) -> None:
    """Child: echo each connection; what came of it goes to the parent."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = writer.get_extra_info("smc")
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        parent.send([info.path, info.version, info.device, info.gid, info.peer_gid, info.mtu])

    server = await smcfast.start_smc_server(echo, address, 0, config=config(**settings))
    parent.send(server.sockets[0].getsockname()[1])
    await parent.areceive()
    server.close()
    await server.wait_closed()


async def connect(port: int, near: str = A.address, far: str = B.address, **settings: Any) -> Streams:
    return await smcfast.open_smc_connection(far, port, local_addr=(near, 0), config=config(**settings))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int) -> None:
    pattern = Pattern(SEED)

    async def receive() -> None:
        pattern.check(0, await reader.readexactly(length))

    receiving = asyncio.ensure_future(receive())
    writer.write(pattern.take(0, length))
    await writer.drain()
    await receiving


async def end(child: ForkedChild, silent: bool = True) -> None:
    child.send("end")
    await child.aresult(silent=silent)


async def test_every_size_comes_back(spawn: Callable[..., ForkedChild], loop_kind: str) -> None:
    child = spawn(serve, B.address, {}, loop=loop_kind)
    reader, writer = await connect(await child.areceive())
    info = writer.get_extra_info("smc")
    assert (info.path, info.version, info.release, info.eid) == ("smc-r", 2, 1, "SMCFAST")
    assert (info.device, info.mtu) == (A.device, 1024)
    for length in SIZES:
        await echo(reader, writer, length)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    path, version, device, gid, peer_gid, mtu = await child.areceive()
    assert (path, version, device, mtu) == ("smc-r", 2, B.device, 1024)
    assert (gid, peer_gid) == (info.peer_gid, info.gid)
    await end(child)


async def test_connections_share_a_link_group(spawn: Callable[..., ForkedChild], loop_kind: str) -> None:
    child = spawn(serve, B.address, {}, loop=loop_kind)
    port = await child.areceive()
    groups = set()
    for _ in range(10):
        reader, writer = await connect(port)
        groups.add(writer.get_extra_info("smc").link_group)
        await echo(reader, writer, 1000)
        writer.close()
        await writer.wait_closed()
        assert (await child.areceive())[0] == "smc-r"
    assert len(groups) == 1
    await end(child)


async def test_connections_that_come_at_once_share_a_link_group(
    spawn: Callable[..., ForkedChild], loop_kind: str
) -> None:
    child = spawn(serve, B.address, {}, loop=loop_kind)
    port = await child.areceive()
    all_streams = await asyncio.gather(*(connect(port) for _ in range(20)))
    groups = {writer.get_extra_info("smc").link_group for _, writer in all_streams}
    assert len(groups) == 1
    for reader, writer in all_streams:
        await echo(reader, writer, 1000)
        writer.close()
        await writer.wait_closed()
        assert (await child.areceive())[0] == "smc-r"
    await end(child)


async def serve_the_lost(parent: Channel, address: str) -> None:
    """Child: echo each connection; the name of the error that ends it goes to the parent."""

    async def echo_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except ConnectionError as error:
            parent.send(type(error).__name__)
        else:
            parent.send(None)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await smcfast.start_smc_server(echo_back, address, 0, config=config()) as server:
        parent.send(server.sockets[0].getsockname()[1])
        await parent.areceive()


async def test_a_device_that_is_removed_is_let_go_of(spawn: Callable[..., ForkedChild], loop_kind: str) -> None:
    """Soft-RoCE is not removed before nobody has anything of it, and streams are held here all the time."""
    with network.another_cable() as (near, far):
        child, other = spawn(serve_the_lost, B.address, loop=loop_kind), spawn(serve, far.address, {}, loop=loop_kind)
        port = await child.areceive()
        streams = [await connect(port) for _ in range(2)]
        kept = await connect(await other.areceive(), near.address, far.address)
        assert kept[1].get_extra_info("smc").device == near.device
        waiting = asyncio.ensure_future(streams[0][0].read(1))
        removal = await asyncio.create_subprocess_exec("rdma", "link", "delete", A.device)
        with pytest.raises(smcfast.SmcLinkError, match="device"):
            await waiting
        assert await removal.wait() == 0
        with pytest.raises(smcfast.SmcLinkError, match="device"):
            await streams[1][0].read(1)
        # Others go on, also in the same process.
        await echo(*kept, 70_000)
        for _, writer in streams:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        assert [await child.areceive() for _ in streams] == ["ConnectionResetError"] * 2
        # When it is back, it is used again.
        network.add_device(A)
        again = await connect(port)
        await echo(*again, 1000)
        for writer in (again[1], kept[1]):
            writer.close()
            await writer.wait_closed()
        assert await child.areceive() is None
        await other.areceive()
        await end(child)
        await end(other)


async def connect_with_little_memory(parent: Channel, port: int) -> None:
    """Child: what becomes of a connection."""
    reader, writer = await connect(port, fallback="allow")
    info = writer.get_extra_info("smc")
    await echo(reader, writer, 1000)
    parent.send([info.path, info.fallback.name, info.fallback.text])
    writer.close()
    await writer.wait_closed()


async def test_a_limit_of_locked_memory_is_tcp_and_named(spawn: Callable[..., ForkedChild], loop_kind: str) -> None:
    child = spawn(serve, B.address, {"fallback": "allow"}, loop=loop_kind)
    port = await child.areceive()
    # Root has no limit while it has CAP_IPC_LOCK.
    within = ("setpriv", "--bounding-set=-ipc_lock", "prlimit", f"--memlock={RMB}")
    client = spawn(connect_with_little_memory, port, loop=loop_kind, within=within)
    path, name, text = await client.areceive()
    assert (path, name) == ("tcp", "buffer_registration")
    assert f"RLIMIT_MEMLOCK of this process is {RMB} bytes" in text
    await client.aresult()
    assert (await child.areceive())[0] == "tcp"
    await end(child, silent=False)


async def test_other_enterprise_ids_are_tcp(spawn: Callable[..., ForkedChild], loop_kind: str) -> None:
    child = spawn(serve, B.address, {"ueids": ["ONE"]}, loop=loop_kind)
    port = await child.areceive()
    with pytest.raises(smcfast.SmcFallbackError) as caught:
        await connect(port, ueids=("OTHER",))
    assert caught.value.fallback.name == "no_smc_device"
    reader, writer = await connect(port, ueids=("OTHER", "ONE"))
    assert writer.get_extra_info("smc").eid == "ONE"
    await echo(reader, writer, 70_000)
    writer.close()
    await writer.wait_closed()
    assert (await child.areceive())[0] == "smc-r"
    await end(child, silent=False)  # It logs whom it refuses.


@pytest.mark.parametrize(
    ("family", "ueids"), [(socket.AF_INET6, ("ONE", "ONE")), (socket.AF_INET, ("ONE", "OTHER"))], ids=["ipv6", "no-eid"]
)
async def test_version_1_where_version_2_does_not_go(
    spawn: Callable[..., ForkedChild], family: socket.AddressFamily, ueids: tuple[str, str]
) -> None:
    """It wants IPv4 and an enterprise id that both have."""
    ours, theirs = ({"rocev2_in_v1": True, "ueids": [ueid]} for ueid in ueids)
    child = spawn(serve, B.at(family), theirs)
    port = await child.areceive()
    reader, writer = await connect(port, A.at(family), B.at(family), **ours)
    info = writer.get_extra_info("smc")
    assert (info.path, info.version, info.device) == ("smc-r", 1, A.device)
    await echo(reader, writer, 200_000)
    writer.close()
    await writer.wait_closed()
    assert (await child.areceive())[:2] == ["smc-r", 1]
    await end(child)
