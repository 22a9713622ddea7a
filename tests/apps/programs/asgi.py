"""An ASGI application, for ``uvicorn asgi:app``."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from common import pattern


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await echo(receive, send)
    elif scope["type"] == "http":
        name, _, size = scope["path"][1:].partition("/")
        await {"stream": stream, "upload": upload, "small": small}[name](receive, send, size)


async def small(_: Any, send: Any, __: str) -> None:
    await begin(send, content_length=5)
    await send({"type": "http.response.body", "body": b"hello"})


async def stream(_: Any, send: Any, size: str) -> None:
    """As many bytes as the path says, in pieces of 10,007, each sent by itself."""
    body = pattern(int(size))
    await begin(send)
    for start in range(0, len(body), 10_007):
        await send({"type": "http.response.body", "body": body[start : start + 10_007], "more_body": True})
    await send({"type": "http.response.body"})


async def upload(receive: Any, send: Any, _: str) -> None:
    """What has come, by its length and its digest."""
    count, seen, more = 0, hashlib.sha256(), True
    while more:
        message = await receive()
        count += len(message["body"])
        seen.update(message["body"])
        more = message["more_body"]
    body = json.dumps([count, seen.hexdigest()]).encode()
    await begin(send, content_length=len(body))
    await send({"type": "http.response.body", "body": body})


async def begin(send: Any, content_length: int | None = None) -> None:
    headers = [] if content_length is None else [(b"content-length", b"%d" % content_length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def echo(receive: Any, send: Any) -> None:
    """Messages as they are, texts turned round."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        if (text := message.get("text")) is not None:
            await send({"type": "websocket.send", "text": text[::-1]})
        else:
            await send({"type": "websocket.send", "bytes": message["bytes"]})
