"""A blocking server and a blocking client, as socket.create_server and socket.create_connection make them."""

import threading

import smcfast


def shout(server: smcfast.SmcListener) -> None:
    sock, _ = server.accept()
    with sock, sock.makefile("rb") as lines:
        for line in lines:
            sock.sendall(line.upper())


with smcfast.create_server(("127.0.0.1", 0)) as server:
    thread = threading.Thread(target=shout, args=(server,))
    thread.start()
    with smcfast.create_connection(server.getsockname(), timeout=10) as sock:
        sock.sendall(b"hello\n")
        print(sock.recv(100))
        print("path:", smcfast.smc_info(sock).path)
    thread.join()
