"""Bytes in their place: numbers are made where they are sent from, and added up where they have arrived."""

import asyncio

import smcfast

COUNT = 100_000
DOUBLE = 8  # bytes


async def count_up(reader: smcfast.SmcStreamReader, writer: smcfast.SmcStreamWriter) -> None:
    greeting = bytearray(5)
    await reader.readinto(greeting)
    number = 0
    while number < COUNT:
        with await writer.reserve((COUNT - number) * DOUBLE, at_least=DOUBLE) as room:
            whole = len(room) // DOUBLE * DOUBLE
            with memoryview(room)[:whole].cast("d") as doubles:  # or numpy.frombuffer(room, ...)
                for place in range(len(doubles)):
                    doubles[place] = number + place
                number += len(doubles)
            room.commit(whole)
    writer.close()


async def main() -> None:
    server = await smcfast.start_smc_server(count_up, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        reader, writer = await smcfast.open_smc_connection(host, port)
        writer.write(b"hello")
        total, ended = 0.0, False
        while not ended:
            with await reader.view(at_least=DOUBLE) as view:
                whole = len(view) // DOUBLE * DOUBLE
                with memoryview(view)[:whole].cast("d") as doubles:
                    total += sum(doubles)
                ended = len(view) == 0
                view.consume(whole)
        print(total == COUNT * (COUNT - 1) / 2)
        print("path:", writer.get_extra_info("smc").path)
        writer.close()
        await writer.wait_closed()


asyncio.run(main())
