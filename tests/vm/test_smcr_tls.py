"""TLS and protocols over software RoCE, and TLS over the kernel's own SMC sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import smcfast
from support.protocols import Recorder
from support.streams import eventually
from support.tls import client_context, server_context
from vm.support.hosts import A, B
from vm.support.ours import HANDSHAKE_TIMEOUT
from vm.support.pattern import Pattern

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from support.channel import Channel
    from vm.support.forked import ForkedChild

LINK = smcfast.SmcConfig(
    paths=("smc-r",),
    discovery=(),
    assume=("*:*",),
    fallback="forbid",
    rmb_size=65536,
    handshake_timeout=HANDSHAKE_TIMEOUT,
)
KERNEL = smcfast.SmcConfig(paths=("kernel",))
PATTERN = Pattern(31)
LENGTH = 300_000


async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """In the clear until STARTTLS, if it is not TLS already; then an echo."""
    if writer.get_extra_info("ssl_object") is None:
        assert await reader.readline() == b"STARTTLS\n"
        writer.write(b"go on\n")
        await writer.start_tls(server_context())
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(parent: Channel, address: str) -> None:
    """Child: one server in TLS, one that changes to it, one of protocols."""
    servers = [
        await smcfast.start_smc_server(upgrade, address, 0, ssl=server_context(), config=LINK),
        await smcfast.start_smc_server(upgrade, address, 0, config=LINK),
        await smcfast.create_smc_server(Echo, address, 0, config=LINK),
    ]
    parent.send([server.sockets[0].getsockname()[1] for server in servers])
    await parent.areceive()
    for server in servers:
        server.close()


class Echo(Recorder):
    """Sends back what it is handed, and closes with its client."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps_open = False

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def exchanges(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    assert writer.get_extra_info("smc").path == path
    assert writer.get_extra_info("ssl_object") is not None
    writer.write(PATTERN.take(0, LENGTH))
    PATTERN.check(0, await reader.readexactly(LENGTH))
    writer.close()
    await writer.wait_closed()


async def test_tls_and_protocols_over_a_link(spawn: Callable[..., ForkedChild], loop_kind: str) -> None:
    child = spawn(serve, B.address, loop=loop_kind)
    secure, later, plain = await child.areceive()
    near = {"local_addr": (A.address, 0), "config": LINK}
    tls = {"ssl": client_context(), "server_hostname": "localhost"}
    await exchanges(*await smcfast.open_smc_connection(B.address, secure, **near, **tls), "smc-r")  # type: ignore[arg-type]
    reader, writer = await smcfast.open_smc_connection(B.address, later, **near)  # type: ignore[arg-type]
    writer.write(b"STARTTLS\n")
    assert await reader.readline() == b"go on\n"
    await writer.start_tls(client_context(), server_hostname="localhost")
    await exchanges(reader, writer, "smc-r")
    transport, client = await smcfast.create_smc_connection(Recorder, B.address, plain, **near)  # type: ignore[arg-type]
    info = smcfast.smc_info(transport)
    assert info is not None
    assert info.path == "smc-r"
    transport.write(PATTERN.take(0, LENGTH))
    await eventually(lambda: len(client.data) == LENGTH)
    PATTERN.check(0, bytes(client.data))
    transport.close()
    await eventually(lambda: client.is_lost)
    child.send("end")
    await child.aresult()


async def test_tls_over_the_kernels_smc() -> None:
    async with await smcfast.start_smc_server(upgrade, B.address, 0, ssl=server_context(), config=KERNEL) as server:
        streams = await smcfast.open_smc_connection(
            *server.sockets[0].getsockname(),
            local_addr=(A.address, 0),
            ssl=client_context(),
            server_hostname="localhost",
            config=KERNEL,
        )
        await exchanges(*streams, "kernel")
    await server.wait_closed()
