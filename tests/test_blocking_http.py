"""The standard library's HTTP over blocking sockets: its clients, its servers, and those of socketserver."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import socket
import socketserver
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast.ringsocket import RingSocket
from support.sockets import GUARD, PATHS, assert_path, config_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


class Handler(http.server.BaseHTTPRequestHandler):
    """Tells what it was asked, and over which path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = GUARD

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body: bytes) -> None:
        connection: Any = self.connection
        told = {"path": connection.smc_info.path, "length": len(body), "asked": self.path}
        data = json.dumps(told).encode() + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """An HTTP server whose listener is ours."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], path: str) -> None:
        super().__init__(address, Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = smcfast.create_server(address, config=config_of(path))  # type: ignore[assignment]
        self.server_address = self.socket.getsockname()


class Connection(http.client.HTTPConnection):
    """An HTTP connection over ours."""

    def connect(self) -> None:
        sock = smcfast.create_connection((self.host, self.port), self.timeout, self.source_address)
        self.sock = sock  # type: ignore[assignment]


@contextlib.contextmanager
def served(path: str) -> Iterator[Any]:
    with Server(("127.0.0.1", 0), path) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address
        server.shutdown()
        thread.join()


def test_a_connection_is_kept_alive_for_requests_of_all_sizes(path: str) -> None:
    with served(path) as (host, port):
        connection = Connection(host, port, timeout=GUARD)
        connection.connect()
        assert_path(connection.sock, path)  # type: ignore[arg-type]
        for size in (0, 1, 70_000, 3_000_000):
            body = bytes(size)
            connection.request("POST", f"/{size}", body=body)
            response = connection.getresponse()
            data = response.read()
            told = {"path": path, "length": size, "asked": f"/{size}"}
            assert data == json.dumps(told).encode() + body
        connection.close()


def test_urllib_by_a_handler(path: str) -> None:
    class Opener(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> Any:
            return self.do_open(Connection, request)

    with served(path) as (host, port):
        opener = urllib.request.build_opener(Opener)
        with opener.open(f"http://{host}:{port}/x", timeout=GUARD) as response:
            assert json.loads(response.read())["path"] == path


def test_plain_clients_are_served_as_well() -> None:
    with served("tcp") as (host, port):
        plain = http.client.HTTPConnection(host, port, timeout=GUARD)
        plain.request("GET", "/plain")
        assert json.loads(plain.getresponse().read())["path"] == "tcp"
        plain.close()


def test_a_server_of_lines(path: str) -> None:
    class Shout(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                self.wfile.write(line.upper())

    class Lines(socketserver.TCPServer):
        def server_bind(self) -> None:
            self.socket.close()
            self.socket = smcfast.create_server(("127.0.0.1", 0), config=config_of(path))  # type: ignore[assignment]
            self.server_address = self.socket.getsockname()

        def server_activate(self) -> None:
            """It listens already."""

    with Lines(("127.0.0.1", 0), Shout) as server:
        with smcfast.create_connection(server.server_address, GUARD, config=config_of(path)) as client:  # type: ignore[arg-type]
            client.sendall(b"hello\nworld\n")
            client.shutdown(socket.SHUT_WR)
            server.handle_request()
            with client.makefile("rb") as answer:
                assert answer.readlines() == [b"HELLO\n", b"WORLD\n"]
            assert isinstance(client, RingSocket) == (path == "smc-d")
