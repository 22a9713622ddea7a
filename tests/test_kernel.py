"""The path "kernel" without a kernel that has SMC: MPTCP, which stands beside TCP in the same way, takes its place.

What the kernel would tell of its sockets is made up here; the real ones are in tests/vm.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, SmcFallbackError, devices, fallback, kernel, nlmsg, order, remembered
from support.addresses import port_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IPPROTO_MPTCP = 262
NO_UEID = 0x0303_0000


def why_no_stand_in() -> str | None:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP).close()
    except OSError as error:
        return f"no MPTCP to take the place of SMC: {error}"
    return None


needs_stand_in = pytest.mark.skipif(why_no_stand_in() is not None, reason=str(why_no_stand_in()))


def message(inode: int, mode: int, *attributes: tuple[int, bytes]) -> bytes:
    """One socket as smc_diag tells of it."""
    head = struct.pack("=BBBB48xIQ", socket.AF_INET, 1, mode, 0, 0, inode)
    return head + nlmsg.packed(attributes)


def inode(sock: Any) -> int:
    return os.fstat(sock.fileno()).st_ino


def codes(own: int, peers: int = 0) -> tuple[int, bytes]:
    return 5, struct.pack("=II", own, peers)


SIZES = (1, struct.pack("=IIII", 7, 1, 65536, 131072) + bytes(60))
GID = b"0000:0000:0000:0000:0000:ffff:0a09:0001\0"
LINK = (2, struct.pack("=B64sB40s40sB", 1, b"rxe0", 1, GID, GID.replace(b"0001\0", b"0002\0"), 0))


@pytest.fixture(autouse=True)
def nothing_refused() -> Iterator[None]:
    kernel._refused.clear()
    remembered.listeners._until.clear()
    yield
    kernel._refused.clear()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPTCP is SMC; all sockets run over it, and smc_diag does not exist."""
    monkeypatch.setattr(kernel, "IPPROTO_SMC", IPPROTO_MPTCP)
    monkeypatch.setattr(kernel, "_sockets", lambda: iter(()))
    monkeypatch.setattr(kernel, "is_plain", lambda _: False)


@pytest.fixture
def stand_in_as_tcp(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sockets of "SMC" run as TCP, because neither end has an enterprise id."""
    monkeypatch.setattr(kernel, "is_plain", lambda _: True)
    monkeypatch.setattr(kernel, "_found", lambda _: ("tcp", dict([codes(NO_UEID)])))


def test_the_constants_are_those_of_linux() -> None:
    assert (smcfast.AF_SMC, smcfast.SMCPROTO_SMC, smcfast.SMCPROTO_SMC6, smcfast.IPPROTO_SMC) == (43, 0, 1, 256)


async def echo_once(config: SmcConfig, host: str, client: SmcConfig | None = None) -> tuple[Any, Any]:
    """The infos of both ends of one connection over which bytes have gone both ways."""
    infos: asyncio.Queue[Any] = asyncio.Queue()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(100_000))
        await writer.drain()
        infos.put_nowait((writer.get_extra_info("smc"), writer.get_extra_info("socket")))
        await reader.read()
        writer.close()

    server = await smcfast.start_smc_server(echo, host, 0, config=config)
    reader, writer = await smcfast.open_smc_connection(host, port_of(server.sockets), config=client or config)
    writer.write(b"x" * 100_000)
    assert await reader.readexactly(100_000) == b"x" * 100_000
    theirs, _ = await infos.get()
    sock = writer.get_extra_info("socket")
    mine = writer.get_extra_info("smc")
    if mine.path == "kernel":
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    return mine, theirs


@needs_stand_in
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_stream_over_the_kernels_socket(stand_in: None, host: str) -> None:
    before = smcfast.stats()["connections"]["kernel"]
    for info in await echo_once(SmcConfig(paths=("kernel",), discovery=()), host):
        assert (info.path, info.mode, info.fallback) == ("kernel", None, None)
        assert info.setup_us > 0
        assert dict(info.counters) == {}
    assert smcfast.stats()["connections"]["kernel"] == before + 2


@needs_stand_in
async def test_whoever_comes_over_the_kernels_smc_is_not_looked_for(
    stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smcfast.welcome, "Caller", lambda *_: pytest.fail("looked for"))
    mine, theirs = await echo_once(SmcConfig(paths=("kernel", "smc-d")), "127.0.0.1")
    assert (mine.path, theirs.path) == ("kernel", "kernel")


@needs_stand_in
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_kernels_socket_that_runs_as_tcp_says_why(stand_in_as_tcp: None, host: str) -> None:
    for info in await echo_once(SmcConfig(paths=("kernel",)), host):
        assert (info.path, info.mode, info.fallback.code) == ("tcp", None, NO_UEID)


@needs_stand_in
async def test_forbid_refuses_a_kernels_socket_that_runs_as_tcp(stand_in_as_tcp: None) -> None:
    server = await smcfast.start_smc_server(lambda *_: None, "127.0.0.1", 0, config=SmcConfig(paths=("kernel",)))
    config = SmcConfig(paths=("kernel",), fallback="forbid")
    with pytest.raises(SmcFallbackError) as caught:
        await smcfast.open_smc_connection("127.0.0.1", port_of(server.sockets), config=config)
    assert caught.value.code == NO_UEID
    server.close()
    await server.wait_closed()


@needs_stand_in
@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (("smc-d", "kernel"), "smc-d"),
        (("kernel", "smc-d"), "kernel"),
        (("smc-d", "smc-r", "kernel"), "smc-d"),
        (("kernel",), "kernel"),
        (("smc-d",), "smc-d"),
    ],
)
async def test_the_order_of_the_paths_is_that_of_preference(
    stand_in: None, monkeypatch: pytest.MonkeyPatch, paths: tuple[str, ...], expected: str
) -> None:
    """The server's listener is the kernel's in each case but the last; a client of smc-d comes over TCP."""
    monkeypatch.setattr(kernel, "is_plain", lambda sock: sock.getpeername()[1] not in over_smc)
    over_smc: set[int] = set()
    attempts: list[int] = []
    made = order.is_kernels_at

    def note(config: SmcConfig, family: int, sockaddr: tuple[Any, ...]) -> bool:
        attempts.append(sockaddr[1])
        if made(config, family, sockaddr):
            over_smc.add(sockaddr[1])
            return True
        return False

    monkeypatch.setattr(order, "is_kernels_at", note)
    monkeypatch.setattr(kernel, "told", lambda sock: smcfast.SmcInfo(path="kernel", mode="smc-r"))
    monkeypatch.setattr(kernel, "carries", lambda sock: bool(over_smc))
    if expected == "smc-d":
        monkeypatch.setattr(kernel, "told", lambda sock: smcfast.Fallback(0x0301_0000, "peer_plain", "plain"))
    mine, theirs = await echo_once(SmcConfig(paths=paths), "127.0.0.1")
    assert (mine.path, theirs.path) == (expected, expected)
    assert len(attempts) == 1


@needs_stand_in
async def test_a_kernels_listener_meets_clients_of_smc_d_and_of_nothing(stand_in: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(kernel, "is_plain", lambda _: True)
    monkeypatch.setattr(kernel, "_found", lambda _: ("tcp", dict([codes(0x0301_0000)])))
    config = SmcConfig(paths=("smc-d", "kernel"))
    mine, theirs = await echo_once(config, "127.0.0.1", SmcConfig(paths=("smc-d",)))
    assert (mine.path, theirs.path) == ("smc-d", "smc-d")
    mine, theirs = await echo_once(config, "127.0.0.1", SmcConfig(paths=()))
    assert (mine.path, theirs.path, theirs.fallback.name) == ("tcp", "tcp", "peer_plain")
    monkeypatch.setattr(kernel, "_found", lambda _: ("tcp", dict([codes(0x0500_0000, NO_UEID)])))
    mine, theirs = await echo_once(config, "127.0.0.1", SmcConfig(paths=()))
    assert (theirs.fallback.code, theirs.fallback.text[:17]) == (NO_UEID, "the peer declined")


@needs_stand_in
async def test_smc_r_comes_before_the_kernel_where_there_are_devices(
    stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = SmcConfig(paths=("smc-r", "kernel"))
    assert order.is_kernels(both, socket.AF_INET)
    monkeypatch.setattr(devices, "are_there", lambda: True)
    assert not order.is_kernels(both, socket.AF_INET)
    assert order.is_kernels(SmcConfig(paths=("kernel", "smc-r")), socket.AF_INET6)
    assert not order.is_kernels(both, socket.AF_UNIX)


@needs_stand_in
@pytest.mark.parametrize("reuse", [None, True, False])
async def test_a_kernels_listener_has_the_address_that_was_bound(stand_in: None, reuse: bool | None) -> None:
    config = SmcConfig(paths=("kernel",))
    options = {"reuse_address": reuse, "config": config}
    server = await smcfast.start_smc_server(lambda *_: None, ["127.0.0.1", "::1"], 0, **options)  # type: ignore[arg-type]
    assert {sock.family for sock in server.sockets} == {socket.AF_INET, socket.AF_INET6}
    for sock in server.sockets:
        assert sock.getsockopt(socket.SOL_SOCKET, kernel._SO_PROTOCOL) == IPPROTO_MPTCP
        assert bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)) == (reuse is not False)
        if sock.family == socket.AF_INET6:
            assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        with pytest.raises(OSError, match="in use"):
            await smcfast.start_smc_server(lambda *_: None, *sock.getsockname()[:2], config=config)
    server.close()
    await server.wait_closed()


@needs_stand_in
async def test_the_users_own_socket_of_the_kernel(stand_in: None) -> None:
    """Whatever the paths are: it is one of the kernel's."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    listener.bind(("127.0.0.1", 0))
    served: asyncio.Queue[Any] = asyncio.Queue()

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.put_nowait(writer.get_extra_info("smc"))
        writer.close()

    server = await smcfast.start_smc_server(note, sock=listener)
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    client.connect(server.sockets[0].getsockname())
    reader, writer = await smcfast.open_smc_connection(sock=client)
    assert writer.get_extra_info("smc").path == "kernel"
    assert (await served.get()).path == "kernel"
    assert await reader.read() == b""
    writer.close()
    server.close()
    await server.wait_closed()


@needs_stand_in
@pytest.mark.parametrize("number", sorted(kernel._BROKEN))
async def test_a_handshake_that_broke_in_the_kernel_is_a_plain_connection_then(
    stand_in: None, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_smc(monkeypatch, number)
    config = SmcConfig(paths=("kernel",))
    server = await smcfast.start_smc_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, config=SmcConfig(paths=())
    )
    reader, writer = await smcfast.open_smc_connection("127.0.0.1", port_of(server.sockets), config=config)
    info = writer.get_extra_info("smc")
    assert (info.path, info.reason) == ("tcp", "handshake_failed")
    assert info.fallback.text.startswith("the kernel's SMC handshake broke off: ")
    assert await reader.read() == b""
    writer.close()
    forbidden = SmcConfig(paths=("kernel",), fallback="forbid")
    with pytest.raises(SmcFallbackError):
        await smcfast.open_smc_connection("127.0.0.1", port_of(server.sockets), config=forbidden)
    server.close()
    await server.wait_closed()


def test_a_host_that_does_not_answer_is_not_asked_twice() -> None:
    timeout = OSError(errno.ETIMEDOUT, "")
    assert kernel.has_broken(timeout, 6.0)
    assert not kernel.has_broken(timeout, 127.0)
    assert kernel.has_broken(OSError(errno.EPROTO, ""), 127.0)


@needs_stand_in
async def test_a_family_that_the_kernel_has_no_smc_for_is_tcp(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not smc-d, which the configuration does not name."""
    why_none = kernel.why_none
    refusal = fallback.reason("kernel_smc")
    monkeypatch.setattr(
        kernel, "why_none", lambda family=socket.AF_INET: why_none(family) if family == socket.AF_INET else refusal
    )
    for client in (SmcConfig(paths=("kernel",)), SmcConfig()):
        mine, theirs = await echo_once(SmcConfig(paths=("kernel",)), "::1", client)
        assert (mine.path, theirs.path, theirs.reason) == ("tcp", "tcp", "kernel_smc")
    mine, _ = await echo_once(SmcConfig(), "::1", SmcConfig(paths=("kernel",)))
    assert (mine.path, mine.reason) == ("tcp", "kernel_smc")


@needs_stand_in
async def test_a_connect_that_tcp_would_fail_at_too_is_an_error(
    stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_smc(monkeypatch, errno.EHOSTUNREACH)
    with pytest.raises(OSError, match="Connect call failed") as caught:
        await smcfast.open_smc_connection("127.0.0.1", 1, config=SmcConfig(paths=("kernel",)))
    assert caught.value.errno == errno.EHOSTUNREACH


def refuse_smc(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Connects of "SMC" fail with this error."""
    connect = socket.socket.connect_ex

    class Socket(socket.socket):
        def connect_ex(self, address: Any) -> int:
            return number if self.proto == IPPROTO_MPTCP else connect(self, address)

    monkeypatch.setattr(socket, "socket", Socket)


async def test_a_kernel_without_smc() -> None:
    """This machine's; where it has SMC, tests/vm is the place."""
    if kernel.why_none() is None:
        pytest.skip("this kernel has SMC")
    for info in await echo_once(SmcConfig(paths=("kernel",)), "127.0.0.1"):
        assert (info.path, info.reason) == ("tcp", "kernel_smc")
        assert info.fallback.text.startswith("the kernel offers no SMC sockets")
    with pytest.raises(SmcFallbackError, match="kernel_smc"):
        await smcfast.start_smc_server(print, "127.0.0.1", 0, config=SmcConfig(paths=("kernel",), fallback="forbid"))
    # The other paths are there all the same.
    mine, theirs = await echo_once(SmcConfig(paths=("kernel", "smc-d")), "127.0.0.1")
    assert (mine.path, theirs.path) == ("smc-d", "smc-d")


def test_a_kernel_that_has_refused_is_asked_again_when_its_module_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def refuse(family: int, _: int, protocol: int) -> None:
        made.append(family)
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")

    monkeypatch.setattr(kernel.socket, "socket", refuse)
    assert kernel.why_none(socket.AF_INET) == kernel.explained(
        "kernel_smc", "the kernel offers no SMC sockets: Protocol not supported"
    )
    monkeypatch.setattr(kernel.pnet, "has_smc", lambda: False)
    assert kernel.why_none(socket.AF_INET) == kernel.reason("kernel_smc")
    assert made == [socket.AF_INET]
    monkeypatch.setattr(kernel.pnet, "has_smc", lambda: True)
    assert kernel.why_none(socket.AF_INET) is not None
    assert made == [socket.AF_INET] * 2
    monkeypatch.undo()


def test_a_moment_without_descriptors_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(kernel.socket, "socket", refuse)
    assert kernel.why_none() is None
    assert kernel._refused == set()
    monkeypatch.undo()


def test_paths_without_the_kernel_never_ask_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "why_none", lambda *_: pytest.fail("asked"))
    assert fallback.beforehand(SmcConfig()) is None
    assert not order.is_kernels(SmcConfig(), socket.AF_INET)


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


def tell(monkeypatch: pytest.MonkeyPatch, plain: bool, answers: Callable[[], Iterator[bytes]]) -> None:
    monkeypatch.setattr(kernel, "is_plain", lambda _: plain)
    monkeypatch.setattr(kernel, "_sockets", answers)


def test_what_the_kernel_tells_of_smc_r(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [message(inode(sock) + 1, 1, codes(7)), message(inode(sock), 0, SIZES, LINK, codes(0)), b"never read"]
    tell(monkeypatch, False, lambda: iter(others))
    assert kernel.told(sock) == smcfast.SmcInfo(
        path="kernel",
        mode="smc-r",
        rmb_size=65536,
        peer_rmb_size=131072,
        device="rxe0",
        gid="00000000000000000000ffff0a090001",
        peer_gid="00000000000000000000ffff0a090002",
    )


def test_what_the_kernel_tells_of_smc_d(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(monkeypatch, False, lambda: iter([message(inode(sock), 2, SIZES)]))
    assert kernel.told(sock) == smcfast.SmcInfo(path="kernel", mode="smc-d", rmb_size=65536, peer_rmb_size=131072)


@pytest.mark.parametrize(
    ("given", "name", "text"),
    [
        ((codes(0x0301_0000),), "peer_plain", "the peer did not announce SMC"),
        ((codes(0x0303_0002),), "no_smc_r_device", ""),
        ((codes(0x0500_0000, 0x0303_0000),), "no_smc_device", "the peer declined: "),
        ((codes(0x0500_0000),), "peer_declined", ""),
        ((codes(0x0BAD_0000),), "diagnosis_0bad0000", "an unknown diagnosis"),
        (((5, b"abc"),), "kernel_silent", ""),
        ((), "kernel_silent", ""),
    ],
)
def test_what_the_kernel_tells_of_tcp(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch, given: tuple[Any, ...], name: str, text: str
) -> None:
    for plain, mode in ((True, 1), (False, 1), (True, 0)):
        tell(monkeypatch, plain, lambda mode=mode: iter([message(inode(sock), mode, *given)]))  # type: ignore[misc]
        why = kernel.told(sock)
        assert isinstance(why, smcfast.Fallback)
        assert why.name == name
        assert why.text.startswith(text)


def refuse_netlink() -> Iterator[bytes]:
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("answers", [lambda: iter(()), refuse_netlink, lambda: iter([bytes(63)])])
def test_a_kernel_that_tells_nothing(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch, answers: Callable[[], Iterator[bytes]]
) -> None:
    """Whether a socket runs as TCP can be seen without being told."""
    tell(monkeypatch, True, answers)
    assert kernel.told(sock) == fallback.reason("kernel_silent")
    tell(monkeypatch, False, answers)
    assert kernel.told(sock) == smcfast.SmcInfo(path="kernel")


def test_a_tcp_socket_is_plain_and_none_of_smc(sock: socket.socket) -> None:
    assert kernel.is_plain(sock)
    assert not kernel.is_smc(sock)
    assert not kernel.carries(sock)
    assert kernel.cookie_within(sock) is None
