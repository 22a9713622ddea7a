"""aiohttp, and uvicorn with httpx, as they are and with two lines changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web
from aiohttp_client import ask, many
from aiohttp_server import application

import smcfast
from apps.support.runs import PROGRAMS, Way, asked, serving
from support.addresses import port_of

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

ASKED = ("small", "big", "chunked", "upload", "chunked upload", "texts", "bytes")


def test_aiohttp_as_it_is(loop_kind: str, way: Way) -> None:
    """One connection for everything, which the websocket ends with, and eight at once."""
    with serving(way, str(PROGRAMS / "aiohttp_server.py"), loop_kind) as server:
        right, client = asked(way, str(PROGRAMS / "aiohttp_client.py"), loop_kind, str(server.port))
    assert right == dict.fromkeys((*ASKED, "many"), True)
    assert client == server.said == way.taken(1 + 8)


class SmcConnector(aiohttp.BaseConnector):
    """How aiohttp's own connectors to other kinds of sockets are made."""

    def __init__(self, config: smcfast.SmcConfig) -> None:
        super().__init__(limit=8)
        self.config = config
        self.paths: list[str] = []

    async def _create_connection(self, req: aiohttp.ClientRequest, *_: Any) -> ResponseHandler:
        host, port = req.url.host, req.url.port
        transport, protocol = await smcfast.create_smc_connection(self._factory, host, port, config=self.config)
        self.paths.append(_path(transport))
        return protocol


def _path(transport: Any) -> str:
    info = smcfast.smc_info(transport)
    assert info is not None
    assert (info.fallback is None) == (info.path != "tcp")
    return info.path


async def test_aiohttp_with_two_lines_changed(host: str, way: Way) -> None:
    """create_smc_server in the place of a site, create_smc_connection in a connector."""
    paths: set[str] = set()

    @web.middleware
    async def watched(request: web.Request, handler: Any) -> web.StreamResponse:
        paths.add(_path(request.transport))
        response: web.StreamResponse = await handler(request)
        return response

    app = application()
    app.middlewares.append(watched)
    runner = web.AppRunner(app)
    await runner.setup()
    server = await smcfast.create_smc_server(runner.server, host, 0, config=way.config)
    at = f"http://{f'[{host}]' if ':' in host else host}:{port_of(server.sockets)}"
    connector = SmcConnector(way.config)
    async with aiohttp.ClientSession(connector=connector) as session:
        assert await ask(session, at) == dict.fromkeys(ASKED, True)
        assert await many(session, at)
    server.close()
    await runner.cleanup()
    await server.wait_closed()
    assert paths == set(connector.paths) == {way.value}


UVICORN = ("-m", "uvicorn", "asgi:app", "--host", "127.0.0.1", "--port", "0", "--no-access-log")
RUNNING = "Uvicorn running on http://127.0.0.1:"


def test_uvicorn_and_httpx_as_they_are(loop_kind: str, way: Way) -> None:
    with serving(way, *UVICORN, "--loop", loop_kind, announced=RUNNING) as server:
        right, client = asked(way, str(PROGRAMS / "httpx_client.py"), loop_kind, str(server.port))
    assert right == dict.fromkeys(("small", "stream", "upload", "chunked upload", "many"), True)
    assert client == server.said == way.taken(1 + 8)


def test_uvicorns_websockets(loop_kind: str, way: Way) -> None:
    with serving(way, *UVICORN, "--loop", loop_kind, "--ws-max-size", "10000000", announced=RUNNING) as server:
        right, client = asked(way, str(PROGRAMS / "websockets_client.py"), loop_kind, str(server.port))
    assert right == dict.fromkeys(("texts", "fragments", "big", "ping"), True)
    assert client == server.said == way.taken(3)
