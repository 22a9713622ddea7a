"""Writes 64 bytes at one end of a stream and reads them at the other, TIMES times, for whoever counts the instructions.

Both ends are in one process, so that nothing waits and every time is the same. `count_streams.py TIMES`
"""

from __future__ import annotations

import asyncio
import gc
import sys

import smcfast

MESSAGE = bytes(64)


async def main(times: int) -> None:
    """The path from `write` to the bytes that `readexactly` returns."""
    accepted: asyncio.Future[asyncio.StreamReader] = asyncio.get_running_loop().create_future()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(reader)
        await writer.wait_closed()

    config = smcfast.SmcConfig(fallback="forbid")
    async with await smcfast.start_smc_server(keep, "127.0.0.1", 0, config=config) as server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await smcfast.open_smc_connection("127.0.0.1", port, config=config)
        reader = await accepted
        gc.collect()
        gc.disable()
        for _ in range(times):
            writer.write(MESSAGE)
            assert len(await reader.readexactly(len(MESSAGE))) == len(MESSAGE)
        writer.close()
        await writer.wait_closed()


asyncio.run(main(int(sys.argv[1])))
