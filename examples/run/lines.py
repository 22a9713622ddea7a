"""A server and a client of asyncio, without a word of smcfast in them: ``smcfast run lines.py``."""

import asyncio


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


async def main() -> None:
    async with await asyncio.start_server(shout, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        print(await reader.readline())
        writer.close()
        await writer.wait_closed()


asyncio.run(main())
