"""What a forked child inherits of blocking sockets: errors that say so, and nothing that could harm the parent."""

from __future__ import annotations

import socket
import warnings
from typing import TYPE_CHECKING

import pytest

import smcfast
from smcfast import SmcConfig
from smcfast.discovery import Invitation
from smcfast.ringsocket import RingSocket
from support.process import in_a_child
from support.sockets import Beside, calling, config_of, connected, received, serving, sleeps, until

if TYPE_CHECKING:
    from collections.abc import Callable


def refused(*calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(RuntimeError, match="belongs to the process that forked"):
            call()


def test_a_child_is_refused_and_the_parent_goes_on() -> None:
    with serving() as listener, connected(spin_us=0) as (client, server):
        client.fileno()

        def child() -> None:
            refused(
                lambda: client.recv(1),
                lambda: client.recv_into(bytearray(1)),
                lambda: client.send(b"x"),
                lambda: client.sendall(b"x"),
                lambda: client.shutdown(2),
                client.fileno,
                listener.accept,
                listener.fileno,
            )
            client.close()
            server.close()
            listener.close()
            with pytest.raises(OSError, match="Bad file descriptor"):
                client.recv(1)

        reader = Beside(server.recv, 1)
        sleeps(server, "stalls_received")
        assert in_a_child(child) == ""
        client.sendall(b"x")
        assert reader.result() == b"x"
        server.sendall(b"y")
        assert client.recv(1) == b"y"
        late = calling(listener)
        served, _ = listener.accept()
        served.sendall(b"z")
        assert late.recv(1) == b"z"
        late.close()
        served.close()


def test_a_child_of_a_moment_in_which_the_locks_are_held() -> None:
    """Nobody gives them back in the child, so nobody may wait for them there."""
    with serving(path="tcp") as listener, connected() as (client, server):
        assert isinstance(client, RingSocket)

        def child() -> None:
            refused(listener.accept, listener.fileno)
            listener.close()
            client.close()

        with listener._lock, listener._reception._lock, client._closing:
            assert in_a_child(child) == ""
        client.sendall(b"x")
        assert server.recv(1) == b"x"


def test_a_child_closes_its_descriptors_of_a_set_up_under_way() -> None:
    with serving() as listener, socket.socket() as tcp:
        invitation = Invitation(tcp, listener.getsockname(), SmcConfig())
        assert invitation.why is None
        tcp.connect(listener.getsockname())
        until(lambda: bool(listener._reception._guests))
        guests = list(listener._reception._guests)

        def child() -> None:
            listener.close()
            assert [guest.conn.fileno() for guest in guests] == [-1]

        assert in_a_child(child) == ""
        invitation.close()


def test_a_child_that_forgets_them_harms_nobody() -> None:
    """No warning, no end of the parent's streams, no name that is taken away."""
    with serving() as listener, connected() as (client, server):
        kept = [listener, client, server]

        def child() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                kept.clear()

        assert in_a_child(child) == ""
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        calling(listener).close()


def test_a_child_opens_its_own() -> None:
    """Beside threads of the parent that hold whatever they may hold."""
    with connected() as (client, _):
        client.fileno()

        def child() -> None:
            with connected(spin_us=0) as (mine, other):
                mine.fileno()
                mine.sendall(b"x")
                assert received(other, 1) == b"x"
                assert smcfast.stats()["connections"]["smc-d"] == 2

        for _ in range(5):
            assert in_a_child(child) == ""


def test_a_child_connects_to_its_parent() -> None:
    with serving() as listener:
        port = listener.getsockname()[1]

        def child() -> None:
            with smcfast.create_connection(("127.0.0.1", port), 30, config=config_of("smc-d")) as mine:
                mine.sendall(b"from the child")

        told = Beside(lambda: listener.accept()[0])
        assert in_a_child(child) == ""
        with told.result() as server:
            assert received(server, 100) == b"from the child"
