"""A server and a client of streams, as asyncio.start_server and asyncio.open_connection make them."""

import asyncio

import smcfast


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.close()


async def main() -> None:
    server = await smcfast.start_smc_server(shout, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        reader, writer = await smcfast.open_smc_connection(host, port)
        writer.write(b"hello\n")
        print(await reader.readline())
        print("path:", writer.get_extra_info("smc").path)
        writer.close()
        await writer.wait_closed()


asyncio.run(main())
