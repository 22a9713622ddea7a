"""Blocking sockets that wait no longer than they may, or not at all."""

from __future__ import annotations

import errno
import socket

import pytest

import smcfast
from smcfast import SmcConfig
from support.sockets import (
    PATHS,
    RING,
    Beside,
    calling,
    connected,
    received,
    send_for_ever,
    sent_without_waiting,
    serving,
    sleeps,
)

SHORT = 0.01


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.mark.parametrize("spin_us", [0, 10_000])
def test_each_call_raises_when_its_time_is_over(path: str, spin_us: int) -> None:
    with connected(path=path, spin_us=spin_us) as (client, _):
        client.settimeout(SHORT)
        for call in (lambda: client.recv(1), lambda: client.recv_into(bytearray(1)), client.makefile("rb").readline):
            with pytest.raises(TimeoutError, match="timed out"):
                call()
        with pytest.raises(TimeoutError, match="timed out"):
            client.sendall(bytes(20_000_000))
        with pytest.raises(TimeoutError, match="timed out"):
            send_for_ever(client)


def test_what_is_there_is_had_whatever_the_timeout(path: str) -> None:
    with connected(path=path) as (client, server):
        client.sendall(b"12")
        assert server.recv(1) == b"1"
        for timeout in (0, 1e-9, SHORT, 1e9, None):
            server.settimeout(timeout)
            client.sendall(b"3")
            assert server.recv(1) in (b"2", b"3")


def test_a_timeout_loses_nothing(path: str) -> None:
    with connected(path=path, spin_us=0) as (client, server):
        server.settimeout(SHORT)
        for byte in (b"a", b"b", b"c"):
            with pytest.raises(TimeoutError):
                server.recv(1)
            client.sendall(byte)
            server.settimeout(30)
            assert server.recv(10) == byte
            server.settimeout(SHORT)


def test_without_waiting_there_is_an_error_or_a_result(path: str) -> None:
    with connected(path=path) as (client, server):
        client.setblocking(False)
        assert (client.gettimeout(), client.getblocking()) == (0.0, False)
        for call in (lambda: client.recv(1), lambda: client.recv_into(bytearray(1))):
            with pytest.raises(BlockingIOError) as caught:
                call()
            assert caught.value.errno == errno.EAGAIN
        sent = sent_without_waiting(client)
        assert received(server, sent) == bytes(sent)
        server.setblocking(True)
        assert (server.gettimeout(), server.getblocking()) == (None, True)
        with pytest.raises(BlockingIOError):
            server.recv(1, socket.MSG_DONTWAIT)


def test_an_end_is_found_without_waiting(path: str) -> None:
    """Also by one who never sleeps: that of the peer's stream, and the peer's own."""
    with connected(path=path) as (client, server):
        server.setblocking(False)
        client.close()
        while True:
            try:
                assert server.recv(1) == b""
                break
            except BlockingIOError:
                continue


def test_timeouts_that_are_none(path: str) -> None:
    with connected(path=path) as (client, _):
        for value in (-1, float("nan")):
            with pytest.raises(ValueError, match=r"Timeout value out of range|Invalid value NaN"):
                client.settimeout(value)
        with pytest.raises(TypeError):
            client.settimeout("1")  # type: ignore[arg-type]


def test_the_default_timeout_is_that_of_the_standard_library(path: str) -> None:
    socket.setdefaulttimeout(7)
    try:
        with serving(path=path) as listener, smcfast.create_connection(listener.getsockname()) as client:
            server, _ = listener.accept()
            assert client.gettimeout() == server.gettimeout() == 7
            server.close()
        fresh = smcfast.create_server(("127.0.0.1", 0))
        assert fresh.gettimeout() == 7
        fresh.close()
    finally:
        socket.setdefaulttimeout(None)


def test_accept_waits_no_longer_than_it_may(path: str) -> None:
    with serving(path=path) as listener:
        listener.settimeout(SHORT)
        with pytest.raises(TimeoutError):
            listener.accept()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
        with pytest.raises(ValueError, match="out of range"):
            listener.settimeout(-1)


def test_a_set_up_is_bounded_by_the_timeout_of_the_connect() -> None:
    """A listener whose process says nothing: its name is there, nobody accepts."""
    from smcfast import netlink, rendezvous

    with socket.create_server(("127.0.0.1", 0)) as silent:
        with rendezvous.claim(rendezvous.listener_name(netlink.cookie(silent))):
            with smcfast.create_connection(
                silent.getsockname(), 0.2, config=SmcConfig(handshake_timeout=3600)
            ) as client:
                assert client.smc_info is not None
                assert client.smc_info.reason == "discovery_timeout"


def test_one_waits_while_the_other_only_looks() -> None:
    """A look takes wake-ups from the same doorbell as the sleeper: it must not take the sleeper's."""
    with connected(spin_us=0) as (client, server):
        for number in range(300):
            sleeper = Beside(server.recv, 1)
            sleeps(server, "stalls_received", number + 1)
            looker = Beside(look, server, 20)
            client.sendall(b"xy")
            got = sleeper.result()
            got += looker.result()
            server.settimeout(30)
            while len(got) < 2:
                got += server.recv(2)
            assert sorted(got) == sorted(b"xy")


def look(server: smcfast.SmcSocket, times: int) -> bytes:
    got = b""
    for _ in range(times):
        try:
            if not got:
                got += server.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
    return got


def test_a_writer_that_times_out_leaves_the_stream_in_order() -> None:
    with connected(spin_us=0) as (client, server):
        client.settimeout(SHORT)
        sent = client.send(bytes(range(256)) * (RING // 256))
        with pytest.raises(TimeoutError):
            client.send(b"x")
        assert received(server, sent) == bytes(range(256)) * (RING // 256)
        client.settimeout(30)
        client.sendall(b"go on")
        assert received(server, 5) == b"go on"


def test_a_client_is_connected_before_anybody_accepts() -> None:
    """As with TCP: also in one thread, and several of them."""
    with serving() as listener:
        clients = [calling(listener) for _ in range(5)]
        for client in clients:
            client.sendall(client.getsockname()[1].to_bytes(2))
        for _ in clients:
            server, address = listener.accept()
            assert int.from_bytes(received(server, 2)) == address[1]
            server.close()
        for client in clients:
            client.close()
