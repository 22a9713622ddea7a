"""Path "kernel": streams of smcfast over the kernel's own SMC sockets, as the kernel sees them too."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, SmcFallbackError, kernel
from vm.support import smc
from vm.support.hosts import A, B
from vm.support.pattern import Pattern
from vm.support.smc import Mode, socket_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from vm.support.peers import KernelPeer

    MakePeer = Callable[[], KernelPeer]

KERNEL = SmcConfig(paths=("kernel",))
SEED, LENGTH = 5, 1_000_001


class Server:
    """A server of smcfast that echoes to the end, and what its streams said."""

    def __init__(self) -> None:
        self.writers: asyncio.Queue[smcfast.streams.SmcStreamWriter] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.put_nowait(writer)  # type: ignore[arg-type]
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def serving(host: str, config: SmcConfig = KERNEL) -> AsyncIterator[tuple[Server, int]]:
    server = Server()
    served = await smcfast.start_smc_server(server.serve, host, 0, config=config)
    try:
        yield server, served.sockets[0].getsockname()[1]
    finally:
        served.close()
        served.close_clients()
        await served.wait_closed()


async def open_to(host: str, port: int, source: str, config: SmcConfig = KERNEL) -> Any:
    return await smcfast.open_smc_connection(host, port, local_addr=(source, 0), config=config)


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes go to an echo and come back, then both streams end.

    In this order: the kernel's close waits for two seconds until the peer has room for what was written, and throws it away
    then. Here it would wait in the loop that has to read.
    """
    pattern = Pattern(SEED)
    writer.write(pattern.take(0, LENGTH))
    pattern.check(0, await reader.readexactly(LENGTH))
    writer.write_eof()
    assert await reader.read() == b""


def check(writer: asyncio.StreamWriter, family: socket.AddressFamily, own: Any, peer: Any) -> None:
    """What smcfast says of a stream, and what the kernel says: IPv6 is TCP over software RoCE, which has version 2 alone."""
    info = writer.get_extra_info("smc")
    seen = socket_of(socket_inode(writer))
    if family == socket.AF_INET6:
        assert (info.path, info.mode, seen.mode) == ("tcp", None, Mode.TCP)
        assert info.fallback.code == (seen.peer_diagnosis or seen.reason)
        return
    assert (info.path, info.mode, info.fallback, seen.mode) == ("kernel", "smc-r", None, Mode.SMC_R)
    assert (info.device, info.gid, info.peer_gid) == (
        own.device,
        own.gid.replace(":", ""),
        peer.gid.replace(":", ""),
    )
    assert (info.rmb_size, info.peer_rmb_size) == (seen.rmb, seen.peer_rmb)
    assert writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def socket_inode(writer: asyncio.StreamWriter) -> int:
    import os

    return os.fstat(writer.get_extra_info("socket").fileno()).st_ino


async def test_between_two_streams(family: socket.AddressFamily) -> None:
    async with serving(B.at(family)) as (server, port):
        reader, writer = await open_to(B.at(family), port, A.at(family))
        served = await server.writers.get()
        check(writer, family, A, B)
        check(served, family, B, A)
        await exchange(reader, writer)
        writer.close()
        await writer.wait_closed()


async def test_with_a_client_of_the_kernel(kernel_peer: MakePeer, family: socket.AddressFamily) -> None:
    peer = kernel_peer()
    async with serving(B.at(family)) as (server, port):
        sock = await peer.connect(B.at(family), port, A.at(family))
        served = await server.writers.get()
        check(served, family, B, A)
        sending = peer.start("send", sock, SEED, LENGTH)
        await peer.do("receive", sock, SEED, LENGTH)
        await peer.finish(sending)
        await peer.do("half_close", sock)
        assert await peer.do("receive_to_end", sock, SEED, LENGTH) == 0


async def test_with_a_server_of_the_kernel(kernel_peer: MakePeer, family: socket.AddressFamily) -> None:
    peer = kernel_peer()
    listener, port = await peer.listen(B.at(family))
    accepting = peer.start("accept", listener)
    reader, writer = await open_to(B.at(family), port, A.at(family))
    echoing = peer.start("echo", await peer.finish(accepting))
    check(writer, family, A, B)
    await exchange(reader, writer)
    assert await peer.finish(echoing) == LENGTH
    writer.close()
    await writer.wait_closed()


async def test_without_an_eid_it_is_tcp_and_says_so() -> None:
    smc.set_eids([])
    async with serving(B.address) as (server, port):
        reader, writer = await open_to(B.address, port, A.address)
        for each in (writer, await server.writers.get()):
            info = each.get_extra_info("smc")
            assert (info.path, info.fallback.code) == ("tcp", smc.NO_DEVICE)
        await exchange(reader, writer)
        writer.close()
        await writer.wait_closed()
        with pytest.raises(SmcFallbackError) as caught:
            await open_to(B.address, port, A.address, SmcConfig(paths=("kernel",), fallback="forbid"))
        assert caught.value.code == smc.NO_DEVICE


async def test_a_plain_peer_is_tcp_and_says_so() -> None:
    plain = SmcConfig(paths=())
    for client, server in ((KERNEL, plain), (plain, KERNEL)):
        async with serving(B.address, server) as (served, port):
            reader, writer = await open_to(B.address, port, A.address, client)
            told = writer if client is KERNEL else await served.writers.get()
            assert told.get_extra_info("smc").reason == "peer_plain"
            await exchange(reader, writer)
            writer.close()
            await writer.wait_closed()


async def test_a_listener_of_the_kernel_serves_all_three(kernel_peer: MakePeer) -> None:
    """smc-d where the client is on this host and says so, the kernel's SMC, and TCP."""
    peer = kernel_peer()
    async with serving(B.address, SmcConfig(paths=("smc-d", "kernel"))) as (server, port):
        for paths, expected in ((("smc-d", "kernel"), "smc-d"), (("kernel", "smc-d"), "kernel"), ((), "tcp")):
            reader, writer = await open_to(B.address, port, A.address, SmcConfig(paths=paths))
            served = await server.writers.get()
            infos = [each.get_extra_info("smc") for each in (writer, served)]
            assert [info.path for info in infos] == [expected] * 2
            await exchange(reader, writer)
            writer.close()
            await writer.wait_closed()
        await peer.connect(B.address, port, A.address)
        assert (await server.writers.get()).get_extra_info("smc").mode == "smc-r"


async def test_smc_d_before_kernel_is_the_kernels_where_nobody_is_announced(kernel_peer: MakePeer) -> None:
    peer = kernel_peer()
    listener, port = await peer.listen(B.address)
    accepting = peer.start("accept", listener)
    _, writer = await open_to(B.address, port, A.address, SmcConfig(paths=("smc-d", "kernel")))
    await peer.finish(accepting)
    assert writer.get_extra_info("smc").mode == "smc-r"
    writer.close()


async def test_nobody_listens(family: socket.AddressFamily) -> None:
    with socket.socket(family) as taken:
        taken.bind((B.at(family), 0))
        with pytest.raises(ConnectionRefusedError):
            await open_to(B.at(family), taken.getsockname()[1], A.at(family))


async def test_a_kernel_without_its_module(loop_kind: str) -> None:
    with smc.unloaded():
        assert kernel.why_none() is not None
        async with serving(B.address) as (server, port):
            reader, writer = await open_to(B.address, port, A.address)
            for each in (writer, await server.writers.get()):
                assert each.get_extra_info("smc").reason == "kernel_smc"
            await exchange(reader, writer)
            writer.close()
            await writer.wait_closed()
    assert kernel.why_none() is None
