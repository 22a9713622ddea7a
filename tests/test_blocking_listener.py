"""Blocking servers: whom they meet, how many may wait, and that no client keeps the others waiting."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, netlink, page, rendezvous, status
from support.process import abstract_names, descriptors
from support.sockets import GUARD, Beside, assert_path, calling, config_of, connected, received, serving, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.channel import Channel
    from support.child import Child


def test_both_kinds_of_clients_of_one_listener() -> None:
    with smcfast.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        for host in ("::1", "127.0.0.1", "localhost"):
            with calling(listener, host) as client:
                server, address = listener.accept()
                with server:
                    assert_path(server, "smc-d")
                    assert address == server.getpeername()
                    client.sendall(b"x")
                    assert server.recv(1) == b"x"
    with pytest.raises(ValueError, match="requires AF_INET6"):
        smcfast.create_server(("127.0.0.1", 0), dualstack_ipv6=True)


def test_an_ipv6_listener_alone_does_not_serve_ipv4() -> None:
    with smcfast.create_server(("::", 0), family=socket.AF_INET6) as listener:
        with pytest.raises(ConnectionRefusedError):
            smcfast.create_connection(("127.0.0.1", listener.getsockname()[1]))


def test_two_listeners_share_a_port() -> None:
    with smcfast.create_server(("127.0.0.1", 0), reuse_port=True) as one:
        with smcfast.create_server(one.getsockname(), reuse_port=True) as other:
            clients = [calling(one) for _ in range(20)]
            for listener in (one, other):
                listener.setblocking(False)
            taken: list[smcfast.SmcSocket] = []
            until(lambda: all_taken((one, other), taken, len(clients)))
            for sock in (*taken, *clients):
                assert_path(sock, "smc-d")
                sock.close()
    with smcfast.create_server(("127.0.0.1", 0)) as one:
        with pytest.raises(OSError, match="while attempting to bind on address"):
            smcfast.create_server(one.getsockname())


def take(listener: smcfast.SmcListener, taken: list[smcfast.SmcSocket]) -> None:
    """Accept who is ready."""
    with contextlib.suppress(BlockingIOError):
        while True:
            taken.append(listener.accept()[0])


def all_taken(listeners: tuple[smcfast.SmcListener, ...], taken: list[smcfast.SmcSocket], count: int) -> bool:
    for listener in listeners:
        take(listener, taken)
    return len(taken) == count


def connect_and_stop(parent: Channel, port: int) -> None:
    """A client that is stopped when the server calls: between the look-up and its answer."""
    from smcfast.discovery import Invitation

    with socket.socket() as tcp:
        invitation = Invitation(tcp, ("127.0.0.1", port), SmcConfig())
        assert invitation.why is None
        tcp.connect(("127.0.0.1", port))
        parent.send("connected")
        parent.receive()
        invitation.close()


def test_a_client_that_is_stopped_keeps_nobody_waiting(spawn: Callable[..., Child]) -> None:
    with serving() as listener:
        stopped = [spawn(connect_and_stop, listener.getsockname()[1]) for _ in range(3)]
        for child in stopped:
            assert child.receive() == "connected"
            os.kill(child.pid, signal.SIGSTOP)
        for _ in range(5):
            with calling(listener) as client:
                server, _ = listener.accept()
                assert server.getpeername() == client.getsockname()
                server.close()


def test_those_who_wait_are_no_more_than_the_backlog() -> None:
    with smcfast.create_server(("127.0.0.1", 0), backlog=2, config=config_of("tcp")) as listener:
        listener.settimeout(GUARD)
        clients = [socket.create_connection(listener.getsockname(), GUARD) for _ in range(4)]
        for client in clients:
            client.sendall(b"x")
        until(lambda: listener._reception._is_full())
        assert len(listener._reception._done) == 2
        for _ in clients:
            server, _ = listener.accept()
            assert received(server, 1) == b"x"
            server.close()
        for client in clients:
            client.close()


def test_a_close_leaves_nothing_and_drops_who_was_not_accepted() -> None:
    connected_once()
    names, before = abstract_names(), descriptors()
    listener = serving()
    address = listener.getsockname()
    assert abstract_names() > names
    clients = [calling(listener) for _ in range(3)]
    listener.close()
    listener.close()
    for client in clients:
        assert client.recv(1) == b""
        client.close()
    assert (abstract_names(), descriptors()) == (names, before)
    with pytest.raises(ConnectionRefusedError):
        smcfast.create_connection(address)
    with smcfast.create_server(address):
        pass


def connected_once() -> None:
    """What a process opens once is there."""
    with connected():
        pass


def test_it_is_shown_with_its_best_path() -> None:
    own = page.page()
    assert own is not None
    for path in ("smc-d", "tcp"):
        with serving(path=path) as listener:
            rows = [row for row in status._page(own.read()).listeners if row.local == listener.getsockname()[:2]]
            assert [row.path for row in rows] == [path]


def test_a_fault_of_the_system_is_told_and_outlived(caplog: pytest.LogCaptureFixture) -> None:
    """No descriptor is left for who has connected: the listener rests, and goes on."""
    from support.process import descriptors_left

    with serving(path="tcp") as listener, socket.socket() as client:
        with descriptors_left(0):
            client.connect(listener.getsockname())
            until(lambda: "rests" in caplog.text)
        server, _ = listener.accept()
        server.close()


@pytest.mark.parametrize("number", [errno.ENETDOWN, errno.EPROTO, errno.EHOSTUNREACH, errno.EPERM, errno.ECONNABORTED])
def test_an_error_of_one_connection_is_outlived(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux's accept hands out what is pending on the connection that it would have given."""
    refused = accepting(monkeypatch, number)
    with serving(path="tcp") as listener:
        with socket.create_connection(listener.getsockname(), GUARD) as client:
            server, address = listener.accept()
            assert address == client.getsockname()
            server.close()
        assert refused == [number]


def test_an_error_of_the_listening_socket_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accepting(monkeypatch, errno.EINVAL)
    with serving(path="tcp") as listener:
        for _ in range(2):
            with pytest.raises(OSError, match=r"the listener has failed: .*Invalid argument"):
                listener.accept()
        assert "receives nobody any more" in caplog.text


def accepting(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Have the first accept of the next listener fail by this error: the errors that were raised."""
    raised: list[int] = []

    accept = socket.socket.accept

    def failing(sock: socket.socket) -> tuple[socket.socket, Any]:
        if not raised:
            raised.append(number)
            raise OSError(number, os.strerror(number))
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", failing)
    return raised


def test_a_forbidden_fallback_is_never_accepted() -> None:
    with serving() as listener:
        before = smcfast.stats()["forbidden"]
        with socket.create_connection(listener.getsockname(), GUARD) as plain:
            assert plain.recv(1) == b""
        assert smcfast.stats()["forbidden"] == before + 1
        with calling(listener) as client:
            server, _ = listener.accept()
            assert server.getpeername() == client.getsockname()
            server.close()


def test_without_the_name_clients_are_plain(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(_: bytes) -> socket.socket:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(rendezvous, "claim", taken)
    with smcfast.create_server(("127.0.0.1", 0)) as listener:
        assert "not announced" in caplog.text
        with smcfast.create_connection(listener.getsockname()) as client:
            assert_path(client, "tcp")
        listener.accept()[0].close()


def test_a_shared_directory_is_a_way_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise netlink.SockDiagUnavailable

    tmp_path.chmod(0o700)
    config = SmcConfig(rendezvous_dir=tmp_path, paths=("smc-d",), fallback="forbid")
    with smcfast.create_server(("127.0.0.1", 0), config=config) as listener:
        monkeypatch.setattr(netlink, "listener_of", refused)
        monkeypatch.setattr(netlink, "look_up", refused)
        with smcfast.create_connection(listener.getsockname(), GUARD, config=config) as client:
            assert_path(client, "smc-d")
            server, _ = listener.accept()
            server.close()


def test_an_assumed_peer_needs_no_discovery() -> None:
    config = SmcConfig(assume=("127.0.0.1:*",), discovery=(), paths=("smc-d",), fallback="forbid")
    with smcfast.create_server(("127.0.0.1", 0), config=config) as listener:
        with smcfast.create_connection(listener.getsockname(), GUARD, config=config) as client:
            assert_path(client, "smc-d")
            server, _ = listener.accept()
            client.sendall(b"x")
            assert server.recv(1) == b"x"
            server.close()


def test_many_threads_accept_at_once() -> None:
    with serving() as listener:
        acceptors = [Beside(listener.accept) for _ in range(8)]
        clients = [calling(listener) for _ in range(8)]
        servers = [acceptor.result()[0] for acceptor in acceptors]
        assert {server.getpeername() for server in servers} == {client.getsockname() for client in clients}
        for sock in (*servers, *clients):
            sock.close()


def accept_until_closed(listener: smcfast.SmcListener) -> int | None:
    """By many short timeouts: the error that ended it."""
    while True:
        try:
            listener.accept()
        except TimeoutError:
            continue
        except OSError as error:
            return error.errno


def test_a_close_beside_accepts_that_time_out(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever leaves last closes what the others used, and nobody does so before."""
    connected_once()
    before = descriptors()
    for _ in range(300):
        listener = serving(path="tcp")
        listener.settimeout(0.0005)
        acceptors = [Beside(accept_until_closed, listener) for _ in range(3)]
        listener.close()
        assert listener._sock.fileno() == -1, "the port is free, whoever is still in accept"
        assert {acceptor.result() for acceptor in acceptors} == {errno.EBADF}
    assert descriptors() == before
    assert caplog.text == ""


def test_a_close_in_the_thread_itself(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As the finalizer of a forgotten listener does, wherever the collector runs: the thread goes on to its end."""
    connected_once()
    before = descriptors()
    accept = socket.socket.accept

    def closing(sock: socket.socket) -> tuple[socket.socket, Any]:
        found = accept(sock)
        listener.close()
        return found

    monkeypatch.setattr(socket.socket, "accept", closing)
    listener = serving(path="tcp")
    with socket.create_connection(listener.getsockname(), GUARD) as client:
        assert client.recv(1) == b""
    listener._reception._thread.join(GUARD)
    assert descriptors() == before
    assert caplog.text == ""


def test_who_takes_from_a_stopped_listener_gets_ebadf() -> None:
    """As `accept` does when the listener is closed after it has looked."""
    listener = serving(path="tcp")
    reception = listener._reception
    reception.enter()
    listener.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        reception.take()
    reception.leave()


async def test_blocking_calls_inside_a_running_loop() -> None:
    """Not what a loop is for, but nothing of it is taken: set-ups here have no loop."""
    with serving() as listener, calling(listener) as client:
        server, _ = listener.accept()
        with server:
            client.sendall(b"x")
            assert server.recv(1) == b"x"
    async with await smcfast.start_smc_server(lambda *_: None, "127.0.0.1", 0) as streams:
        assert streams.sockets
    await asyncio.sleep(0)
