"""The TCP option between hosts, and in networks that take it away, answer for others or drop what they do not know."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import option
from support.capture import ACK, SYN, capturing
from support.echo import talk
from support.namespaces import network, networks, why_none
from support.option import ONLY, Server, begin, bound, why_not, with_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=f"no BPF: {why_not()}"),
    pytest.mark.skipif(why_none() is not None, reason=str(why_none())),
]
NUMERIC = ("127.0.0.1", "::1")


def filtered(rule: str) -> None:
    """Lets nftables do `rule` with what leaves this network namespace."""
    nft(f"type filter hook output priority 0; {rule}")


def nft(*rules: str, within: Sequence[str] = ()) -> None:
    table = "\n".join(["table inet smcfast {", "chain out {", *rules, "}", "}"])
    subprocess.run([*within, "nft", "-f", "-"], input=table, check=True, capture_output=True, text=True, timeout=10)


def why_no_nft() -> str | None:
    """Why packets cannot be filtered here, or None."""
    try:
        nft("reset tcp option 254", within=("unshare", "-n"))
    except OSError as error:
        return f"nft: {error.strerror}"
    except subprocess.CalledProcessError as error:
        return f"nft: {error.stderr.strip()}"
    return None


NFT = pytest.mark.skipif(why_no_nft() is not None, reason=str(why_no_nft()))


@pytest.mark.parametrize("field", ["address", "address6"])
async def test_two_hosts(spawn: Spawn, loop_kind: str, field: str) -> None:
    """Each with a program of its own. Both announce, so there is a handshake, and it is declined: no path is shared."""
    with networks() as (one, two):
        address = getattr(one, field)
        server = spawn(serve_one, address, loop=loop_kind, within=one.command)
        client = spawn(connect_once, address, loop=loop_kind, within=two.command)
        client.send(await server.areceive())
        assert await client.aresult() == ["tcp", "no_rdma_device", [SYN, SYN | ACK]]
        assert await server.aresult() == ["no_smc_device"]


async def serve_one(parent: Channel, address: str) -> list[str | None]:
    """Child: serve a client; the reasons."""
    begin()
    server = Server(ONLY)
    async with server.serving(address) as target:
        parent.send(target[1])
        await server.ended.wait()
    return server.reasons


async def connect_once(parent: Channel, address: str) -> tuple[str, str | None, list[int]]:
    """Child: one connection; its path, its reason, and the flags of the segments with the option."""
    begin()
    port = await parent.areceive()
    with capturing(port, "cable") as capture:
        path, reason = await talk(*await smcfast.open_smc_connection(address, port, config=ONLY))
        return path, reason, [segment.flags & (SYN | ACK) for segment in with_option(capture.taken())]


async def within(spawn: Spawn, loop_kind: str, function: Callable[..., Any]) -> None:
    """Run a child's function in a network of its own."""
    with network() as command:
        await spawn(function, loop=loop_kind, within=command).aresult()


def sysctl(name: str, value: int) -> None:
    Path("/proc/sys/net/ipv4", name).write_text(str(value))


async def by_cookies(_: Channel) -> None:
    """Child: every SYN is answered with a cookie."""
    begin()
    sysctl("tcp_syncookies", 2)
    for address in NUMERIC:
        server = Server(ONLY)
        async with server.serving(address) as target:
            with capturing(target[1]) as capture:
                assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("tcp", "peer_plain")
                assert [segment.is_syn for segment in with_option(capture.taken())] == [True]
        assert server.reasons == ["option_cookie"]


async def test_syn_cookies(spawn: Spawn, loop_kind: str) -> None:
    await within(spawn, loop_kind, by_cookies)


async def by_fast_open(_: Channel) -> None:
    """Child: a listener for Fast Open, and clients of it."""
    begin()
    sysctl("tcp_fastopen", 3)
    for address in NUMERIC:
        sock = bound(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
        server = Server(ONLY)
        async with server.serving(sock=sock) as target:
            with capturing(target[1]) as capture:
                for _round in range(2):
                    sock = await asyncio.to_thread(fast_open, target, b"first")
                    reader, writer = await smcfast.open_smc_connection(sock=sock, config=ONLY)
                    assert writer.get_extra_info("smc").reason == "option_unfit"
                    assert await reader.readexactly(5) == b"first"
                    writer.close()
                    await writer.wait_closed()
                segments = capture.taken()
                # A client that sends a SYN with the option as usual is answered as usual.
                assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("smc-d", None)
        assert with_option(segments) == []
        assert [len(segment.data) for segment in segments if segment.is_syn] == [0, 5]
        assert server.reasons == ["peer_plain", "peer_plain", None]


def fast_open(target: tuple[str, int], data: bytes) -> socket.socket:
    """A marked socket, connected by a SYN that asks for a cookie, or has one and the data."""
    sock = socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET)
    assert option.announce(sock) is None
    sock.sendto(data, socket.MSG_FASTOPEN, target)
    return sock


async def test_fast_open(spawn: Spawn, loop_kind: str) -> None:
    """Neither the SYN that asks for a cookie has the option, nor the one with a cookie and data, nor the answers."""
    await within(spawn, loop_kind, by_fast_open)


async def by_fast_open_without_cookies(_: Channel) -> None:
    """Child: data in the first SYN, without any sign of Fast Open in its options; the socket is there before the SYN/ACK."""
    begin()
    sysctl("tcp_fastopen", 1 | 2 | 4 | 0x200)
    for address in NUMERIC:
        sock = bound(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
        server = Server(ONLY)
        async with server.serving(sock=sock) as target:
            with capturing(target[1]) as capture:
                sock = await asyncio.to_thread(fast_open, target, b"first")
                reader, writer = await smcfast.open_smc_connection(sock=sock, config=ONLY)
                assert writer.get_extra_info("smc").reason == "peer_plain"
                assert await reader.readexactly(5) == b"first"
                writer.close()
                await writer.wait_closed()
                segments = capture.taken()
        assert [(segment.is_syn, segment.data) for segment in with_option(segments)] == [(True, b"first")]
        assert server.reasons == ["option_unfit"]


async def test_fast_open_without_cookies(spawn: Spawn, loop_kind: str) -> None:
    await within(spawn, loop_kind, by_fast_open_without_cookies)


async def stripped_off_syn(_: Channel) -> None:
    """Child: the network takes the option out of SYNs."""
    begin()
    filtered("tcp flags & (syn | ack) == syn reset tcp option 254")
    await stripped(["peer_plain"])


async def stripped_off_syn_ack(_: Channel) -> None:
    """Child: the network takes the option out of answers, so that the ends do not agree about it."""
    begin()
    filtered("tcp flags & (syn | ack) == (syn | ack) reset tcp option 254")
    await stripped(["option_unanswered"])


async def stripped(reasons: list[str]) -> None:
    for address in NUMERIC:
        server = Server(ONLY)
        async with server.serving(address) as target:
            assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == ("tcp", "peer_plain")
        assert server.reasons == reasons


@NFT
@pytest.mark.parametrize("how", [stripped_off_syn, stripped_off_syn_ack])
async def test_an_option_that_is_taken_away(spawn: Spawn, loop_kind: str, how: Callable[..., Any]) -> None:
    await within(spawn, loop_kind, how)


async def dropped(_: Channel) -> None:
    """Child: the network drops SYNs with the option."""
    begin()
    filtered("tcp flags & (syn | ack) == syn tcp option 254 exists drop")
    for address in NUMERIC:
        server = Server(ONLY)
        async with server.serving(address) as target:
            with capturing(target[1]) as capture:
                pair = await smcfast.open_smc_connection(*target, config=ONLY)
                assert await talk(*pair) == ("tcp", "option_dropped")
                expected = ("tcp", "destination_remembered")
                assert await talk(*await smcfast.open_smc_connection(*target, config=ONLY)) == expected
                segments = capture.taken()
        assert with_option(segments) == []  # none has come through
        assert len([segment for segment in segments if segment.is_syn]) == 2
        assert server.reasons == ["peer_plain", "peer_plain"]


async def dropped_from_a_port(_: Channel) -> None:
    """Child: the same for a client whose user has chosen its port."""
    begin()
    filtered("tcp flags & (syn | ack) == syn tcp option 254 exists drop")
    for address in NUMERIC:
        with bound(address) as probe:
            local = probe.getsockname()[:2]
        async with Server(ONLY).serving(address) as target:
            pair = await smcfast.open_smc_connection(*target, local_addr=local, config=ONLY)
            assert pair[1].get_extra_info("sockname")[:2] == local
            assert await talk(*pair) == ("tcp", "option_dropped")


@NFT
@pytest.mark.parametrize("how", [dropped, dropped_from_a_port])
async def test_an_option_that_is_not_let_through(spawn: Spawn, loop_kind: str, how: Callable[..., Any]) -> None:
    await within(spawn, loop_kind, how)
