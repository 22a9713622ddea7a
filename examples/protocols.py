"""A server and a client of protocols, as the event loop's create_server and create_connection make them."""

import asyncio

import smcfast


class Shout(asyncio.Protocol):
    """Sends back what it is handed, in capitals."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


class Ask(asyncio.Protocol):
    """Waits for one answer."""

    def __init__(self) -> None:
        self.answer = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.answer.set_result(data)


async def main() -> None:
    server = await smcfast.create_smc_server(Shout, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        transport, ask = await smcfast.create_smc_connection(Ask, host, port)
        transport.write(b"hello")
        print(await ask.answer)
        print("path:", smcfast.smc_info(transport).path)
        transport.close()


asyncio.run(main())
