"""The standard library's HTTP server and client over blocking sockets."""

import http.client
import http.server
import threading

import smcfast


class Server(http.server.ThreadingHTTPServer):
    """Whatever is bound and served by http.server and socketserver, on a listener of smcfast."""

    def server_bind(self) -> None:
        self.socket.close()
        self.socket = smcfast.create_server(self.server_address)
        self.server_address = self.socket.getsockname()

    def server_activate(self) -> None:
        """It listens already."""


class Connection(http.client.HTTPConnection):
    """An HTTP connection to a server of either kind; urllib.request takes it by way of HTTPHandler.do_open."""

    def connect(self) -> None:
        self.sock = smcfast.create_connection((self.host, self.port), self.timeout)


class Shout(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("X-Path", smcfast.smc_info(self.connection).path)
        self.end_headers()
        self.wfile.write(body.upper())

    def log_message(self, *_: object) -> None:
        pass


with Server(("127.0.0.1", 0), Shout) as server:
    threading.Thread(target=server.serve_forever).start()
    connection = Connection(*server.server_address, timeout=10)
    connection.request("POST", "/", body=b"hello")
    response = connection.getresponse()
    print(response.read())
    print("path:", response.headers["X-Path"])
    connection.close()
    server.shutdown()
