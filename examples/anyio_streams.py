"""A server and a client of anyio, as create_tcp_listener and connect_tcp make them."""

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream

from smcfast.contrib.anyio import SmcAttribute, SmcStream, connect_smc, create_smc_listener


async def shout(stream: SmcStream) -> None:
    async with stream:
        async for data in stream:
            await stream.send(data.upper())


async def main() -> None:
    async with await create_smc_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, shout)
        async with await connect_smc("127.0.0.1", listener.extra(SocketAttribute.local_port)) as stream:
            await stream.send(b"hello\n")
            print(await BufferedByteReceiveStream(stream).receive_until(b"\n", 100))
            print("path:", stream.extra(SmcAttribute.smc_info).path)
        group.cancel_scope.cancel()


anyio.run(main)
