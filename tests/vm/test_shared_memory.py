"""The installed wheel in the machine: two processes of one host, over shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import smcfast
from vm.support.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel
    from vm.support.forked import ForkedChild

SEED, LENGTH = 11, 1_000_001


async def serve(parent: Channel, host: str) -> None:
    """Child: echo one connection."""

    async def echo(reader: smcfast.SmcStreamReader, writer: smcfast.SmcStreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        parent.send("served")

    server = await smcfast.start_smc_server(echo, host, 0)
    parent.send(server.sockets[0].getsockname()[1])
    await parent.areceive()
    server.close()
    await server.wait_closed()


async def test_two_processes(spawn: Callable[..., ForkedChild], host: str, loop_kind: str) -> None:
    child = spawn(serve, host, loop=loop_kind)
    reader, writer = await smcfast.open_smc_connection(host, await child.areceive())
    assert writer.get_extra_info("smc").path == "smc-d"
    pattern = Pattern(SEED)
    writer.write(pattern.take(0, LENGTH))
    writer.write_eof()
    got = await reader.read()
    pattern.check(0, got)
    assert len(got) == LENGTH
    writer.close()
    await writer.wait_closed()
    assert await child.areceive() == "served"
    child.send("end")
    await child.aresult()
