"""A client and a server of http.client and http.server, which know nothing of SMC, with a proxy beside each of them."""

import http.client
import http.server
import json
import subprocess
import sys
import threading


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"hello\n")

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


def proxy(forward: str) -> tuple[subprocess.Popen[str], str]:
    """Start one, and tell where it listens."""
    command = [sys.executable, "-m", "smcfast", "proxy", "--json", forward]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["at"][0]


def end(process: subprocess.Popen[str]) -> dict[str, int]:
    """Let it end in good order, and tell which paths its connections took."""
    process.terminate()
    last, _ = process.communicate()
    paths: dict[str, int] = json.loads(last)["paths"]
    return paths


with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
    threading.Thread(target=server.serve_forever).start()
    beside_server, at = proxy(f"smc:127.0.0.1:0=tcp:127.0.0.1:{server.server_port}")
    beside_client, at = proxy(f"tcp:127.0.0.1:0=smc:{at}")
    client = http.client.HTTPConnection(at)
    client.request("GET", "/")
    print(client.getresponse().read().decode(), end="")
    client.close()
    print(end(beside_client)["smc-d"], "connection by smc-d")
    end(beside_server)
    server.shutdown()
