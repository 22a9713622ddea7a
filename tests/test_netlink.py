"""Socket look-ups, against real sockets."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from smcfast import netlink
from support.addresses import listening
from support.sandbox import forbid_netlink, why_no_seccomp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.channel import Channel
    from support.child import Child


@pytest.fixture
def pair(host: str) -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    """A listener, a client connected to it, and that connection's server half, accepted."""
    with listening(host) as (listeners, port), socket.create_connection((host, port), timeout=5) as client:
        family = client.family
        listener = next(each for each in listeners if each.family == family)
        server, _ = listener.accept()
        with server:
            yield listener, client, server


def ends(sock: socket.socket) -> tuple[netlink.Address, netlink.Address]:
    return netlink.address(sock.getsockname()), netlink.address(sock.getpeername())


def test_a_listener_is_found_by_its_address(pair: tuple[socket.socket, ...]) -> None:
    listener, client, _ = pair
    entry = netlink.listener_of(netlink.destination(client.getpeername()))
    assert entry is not None
    assert (entry.state, entry.uid, entry.cookie) == (netlink.TCP_LISTEN, os.getuid(), netlink.cookie(listener))
    assert entry.inode == os.fstat(listener.fileno()).st_ino


def test_both_halves_are_found_mirrored(pair: tuple[socket.socket, ...]) -> None:
    _, client, server = pair
    for own, other in ((client, server), (server, client)):
        entry = netlink.look_up(*reversed(ends(own)))
        assert entry is not None
        assert entry.cookie == netlink.cookie(other)
        assert entry.state == netlink.TCP_ESTABLISHED
        assert entry.inode == os.fstat(other.fileno()).st_ino


def test_a_connection_in_the_queue_has_no_inode(host: str) -> None:
    with listening(host) as (_, port), socket.create_connection((host, port), timeout=5) as client:
        entry = netlink.look_up(*reversed(ends(client)))
        assert entry is not None
        assert entry.inode == 0


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert netlink.listener_of(netlink.destination(bound.getsockname())) is None


def test_a_dual_stack_listener_serves_both_families() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        port = listener.getsockname()[1]
        for target in (("127.0.0.1", port), ("::1", port, 0, 0), ("::ffff:127.0.0.1", port, 0, 0), ("0.0.0.0", port)):
            entry = netlink.listener_of(netlink.destination(target))
            assert entry is not None, target
            assert entry.cookie == netlink.cookie(listener)


@pytest.mark.parametrize(("loopback", "anywhere"), [("127.0.0.1", "0.0.0.0"), ("::1", "::")])
def test_the_any_address_is_this_host(loopback: str, anywhere: str) -> None:
    """A connect to it arrives at the loopback address, so that is whose listener counts."""
    with listening(loopback) as (listeners, port):
        entry = netlink.listener_of(netlink.destination((anywhere, port)))
        assert entry is not None
        assert entry.cookie == netlink.cookie(listeners[0])


def test_the_exact_listener_wins_over_the_wildcard() -> None:
    with socket.create_server(("0.0.0.0", 0), reuse_port=True) as wildcard:
        port = wildcard.getsockname()[1]
        with socket.create_server(("127.0.0.1", port), reuse_port=True) as exact:
            entry = netlink.listener_of(netlink.destination(("127.0.0.1", port)))
            assert entry is not None
            assert entry.cookie == netlink.cookie(exact)
            entry = netlink.listener_of(netlink.destination(("127.0.0.2", port)))
            assert entry is not None
            assert entry.cookie == netlink.cookie(wildcard)


def test_a_mapped_address_is_ipv4() -> None:
    assert netlink.address(("::ffff:10.1.2.3", 80, 0, 0)) == netlink.address(("10.1.2.3", 80))
    assert netlink.address(("fe80::1%eth0", 80, 0, 3)).scope == 3
    assert netlink.address(("2001:db8::1", 80, 0, 3)).scope == 0


def test_each_thread_has_its_own_socket_and_leaves_none() -> None:
    found = []

    def look() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            entry = netlink.listener_of(netlink.destination(listener.getsockname()))
            found.append(entry is not None and entry.cookie == netlink.cookie(listener))

    netlink.listener_of(netlink.destination(("127.0.0.1", 1)))
    before = len(os.listdir("/proc/self/fd"))
    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [True] * 8
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_after_fork_asks_for_itself() -> None:
    """Parent and child look up different sockets at once; with a shared netlink socket each could get the other's answer."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        assert netlink.listener_of(netlink.destination(one.getsockname())) is not None

        def right(mine: socket.socket) -> bool:
            entries = (netlink.listener_of(netlink.destination(mine.getsockname())) for _ in range(500))
            return {entry and entry.cookie for entry in entries} == {netlink.cookie(mine)}

        child = os.fork()
        if child == 0:
            os._exit(0 if right(other) else 1)
        assert right(one)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def refused(parent: Channel) -> str:
    """Child: what a look-up says where netlink sockets are forbidden."""
    forbid_netlink()
    with pytest.raises(netlink.SockDiagUnavailable) as caught:
        netlink.listener_of(netlink.destination(("127.0.0.1", 1)))
    return str(caught.value)


def test_a_refusal_is_told_apart_from_not_found(spawn: Callable[..., Child]) -> None:
    if why := why_no_seccomp():
        pytest.skip(why)
    assert "not permitted" in spawn(refused).result()
