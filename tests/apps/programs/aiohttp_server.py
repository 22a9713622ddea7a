"""``aiohttp_server.py LOOP``: serves until Ctrl-C, and prints its port."""

from __future__ import annotations

import hashlib
import sys

from aiohttp import WSMsgType, web
from common import HOST, interrupted, pattern, run


async def small(_: web.Request) -> web.Response:
    return web.Response(text="hello")


async def big(request: web.Request) -> web.Response:
    """One body of as many bytes as the path says."""
    return web.Response(body=pattern(int(request.match_info["size"])))


async def chunked(request: web.Request) -> web.StreamResponse:
    """The same in chunks of 10,007 bytes, each sent by itself."""
    body = pattern(int(request.match_info["size"]))
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    for start in range(0, len(body), 10_007):
        await response.write(body[start : start + 10_007])
    await response.write_eof()
    return response


async def upload(request: web.Request) -> web.Response:
    """What has come, by its length and its digest."""
    count, seen = 0, hashlib.sha256()
    async for piece in request.content.iter_any():
        count += len(piece)
        seen.update(piece)
    how = request.headers.get("Transfer-Encoding", "whole")
    return web.json_response([how, count, seen.hexdigest()])


async def echo(request: web.Request) -> web.WebSocketResponse:
    """Texts turned round, bytes as they are."""
    socket = web.WebSocketResponse(max_msg_size=0)
    await socket.prepare(request)
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data[::-1])
        else:
            await socket.send_bytes(message.data)
    return socket


def application() -> web.Application:
    app = web.Application(client_max_size=1 << 30)
    app.add_routes(
        [
            web.get("/small", small),
            web.get("/big/{size}", big),
            web.get("/chunked/{size}", chunked),
            web.post("/upload", upload),
            web.get("/echo", echo),
        ]
    )
    return app


async def main() -> None:
    runner = web.AppRunner(application())
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    print(runner.addresses[0][1], flush=True)
    await interrupted()
    await runner.cleanup()


if __name__ == "__main__":
    run(sys.argv[1], main())
