"""The rendezvous by directory: between containers that share one, and what a directory may look like.

Within one network namespace the rendezvous comes first; `Unannounced` leaves it out, so that the names of the directory
are all that a test in one process has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, discovery, folder, netlink, remembered, rendezvous
from smcfast.folder import Folder
from support.addresses import port_of
from support.namespaces import ISOLATED, networks, why_none
from support.process import become
from support.sandbox import forbid_netlink, why_no_seccomp
from support.streams import eventually, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from support.channel import Channel
    from support.child import Child
    from support.namespaces import Network

    Spawn = Callable[..., Child]

NOBODY = 65534
PATIENT = 8.0
"""Seconds that clients of these tests give a server: the machine may be busy, and more of it changes nothing."""
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")
NAMESPACES = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))


@pytest.fixture(autouse=True)
def no_name_is_left(nothing_is_left: None, tmp_path: Path) -> Iterator[None]:
    yield
    assert list(tmp_path.rglob("smc-*")) == []


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "WAIT", PATIENT)


@pytest.fixture
def unannounced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No listener is found by its cookie."""
    monkeypatch.setattr(netlink, "listener_of", lambda _: None)


class Echo:
    """A server that echoes, with what it found."""

    def __init__(self) -> None:
        self.infos: list[smcfast.SmcInfo] = []
        self.target: tuple[str, int] = ("", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.infos.append(writer.get_extra_info("smc"))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100_000):
                writer.write(data)
                await writer.drain()
        writer.close()

    @property
    def paths(self) -> list[list[str | None]]:
        return [[info.path, info.reason] for info in self.infos]


@contextlib.asynccontextmanager
async def echoing(host: str | None, config: SmcConfig, **options: Any) -> AsyncIterator[Echo]:
    echo = Echo()
    if host is None:
        options["sock"] = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    server = await smcfast.start_smc_server(echo.serve, host, None if host is None else 0, config=config, **options)
    echo.target = host or "127.0.0.1", port_of(server.sockets)
    try:
        yield echo
    finally:
        server.close()
        server.close_clients()
        await server.wait_closed()


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int = 5) -> list[str | None]:
    """Say something, hear it again, hang up: the path, and the reason."""
    data = secrets.token_bytes(size)
    writer.write(data)
    assert await reader.readexactly(size) == data
    writer.close()
    await writer.wait_closed()
    info = writer.get_extra_info("smc")
    return [info.path, info.reason]


async def connect(target: tuple[str, int], config: SmcConfig, size: int = 5) -> list[str | None]:
    return await talk(*await smcfast.open_smc_connection(*target, config=config), size)


def shared(path: Path | str, **options: Any) -> SmcConfig:
    return SmcConfig(rendezvous_dir=str(path), **options)


async def serve_in_child(parent: Channel, host: str | None, options: dict[str, Any]) -> list[list[str | None]]:
    """Child: serve until the parent has enough, and return the paths."""
    async with echoing(host, SmcConfig(**options)) as echo:
        parent.send(echo.target[1])
        assert await parent.areceive() == "enough"
        return echo.paths


async def connect_in_child(
    _parent: Channel, host: str, port: int, options: dict[str, Any], count: int, wait: float = PATIENT
) -> list[list[str | None]]:
    """Child: some connections, one after the other, with more bytes than a ring holds."""
    folder.WAIT = wait  # type: ignore[misc]
    return [await connect((host, port), SmcConfig(**options), 3_000_000) for _ in range(count)]


@pytest.fixture
def two_networks() -> Iterator[tuple[Network, Network]]:
    with networks() as pair:
        yield pair


@NAMESPACES
@pytest.mark.parametrize("listen", ["10.199.0.2", "fd00:199::2", "wildcard"])
async def test_two_containers_that_share_a_directory(
    spawn: Spawn, loop_kind: str, tmp_path: Path, two_networks: tuple[Network, Network], listen: str
) -> None:
    """Nothing but the directory is common: network, process and IPC namespaces are their own."""
    ours, theirs = two_networks
    options = {"rendezvous_dir": str(tmp_path)}
    host = None if listen == "wildcard" else listen
    server = spawn(serve_in_child, host, options, loop=loop_kind, within=[*theirs.command, *ISOLATED])
    port = await server.areceive()
    addresses = [theirs.address, theirs.address6] if host is None else [host]
    for address in addresses:
        client = spawn(connect_in_child, address, port, options, 2, loop=loop_kind, within=[*ours.command, *ISOLATED])
        assert await client.aresult() == [["smc-d", None]] * 2
    server.send("enough")
    assert await server.aresult() == [["smc-d", None]] * 2 * len(addresses)


@NAMESPACES
@pytest.mark.parametrize("has", ["neither", "client", "server", "another"])
async def test_without_the_directory_it_is_tcp_at_once(
    spawn: Spawn, loop_kind: str, tmp_path: Path, two_networks: tuple[Network, Network], has: str
) -> None:
    """No listener is remembered, so nobody has waited."""
    ours, theirs = two_networks
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = ({"rendezvous_dir": str(tmp_path / name)} for name in ("one", "other"))
    at_client = {"neither": {}, "client": one, "server": {}, "another": other}[has]
    at_server = {"neither": {}, "client": {}, "server": one, "another": one}[has]
    server = spawn(serve_in_child, theirs.address, at_server, loop=loop_kind, within=theirs.command)
    port = await server.areceive()
    client = spawn(connect_in_child, theirs.address, port, at_client, 2, loop=loop_kind, within=ours.command)
    assert await client.aresult() == [["tcp", "peer_plain"]] * 2
    server.send("enough")
    assert await server.aresult() == [["tcp", "peer_plain"]] * 2


@NAMESPACES
async def test_a_killed_peer_in_another_process_namespace(
    spawn: Spawn, loop_kind: str, tmp_path: Path, two_networks: tuple[Network, Network]
) -> None:
    """Its number means nothing here, its end does."""
    ours, theirs = two_networks
    options = {"rendezvous_dir": str(tmp_path)}
    server = spawn(serve_in_child, theirs.address, options, loop=loop_kind, within=[*theirs.command, *ISOLATED])
    port = await server.areceive()
    client = spawn(hold_until_lost, theirs.address, port, options, loop=loop_kind, within=[*ours.command, *ISOLATED])
    assert await client.areceive() == "smc-d"
    server.kill()
    assert await client.aresult() == "lost"
    left = [name for name in os.listdir(tmp_path) if name.startswith("smc-l")]
    assert len(left) == 1
    await eventually(lambda: not folder._is_bound(f"{tmp_path}/", left[0]))  # only its keeper was waited for
    # The name that it has left is in nobody's way, and is removed.
    server = spawn(serve_in_child, theirs.address, options, loop=loop_kind, within=[*theirs.command, *ISOLATED])
    port = await server.areceive()
    assert not set(left) & set(os.listdir(tmp_path))
    client = spawn(connect_in_child, theirs.address, port, options, 1, loop=loop_kind, within=ours.command)
    assert await client.aresult() == [["smc-d", None]]
    server.send("enough")
    await server.aresult()


async def hold_until_lost(parent: Channel, host: str, port: int, options: dict[str, Any]) -> str:
    """Child: one connection, until the peer is gone."""
    folder.WAIT = PATIENT  # type: ignore[misc]
    reader, writer = await smcfast.open_smc_connection(host, port, config=SmcConfig(**options))
    parent.send(writer.get_extra_info("smc").path)
    try:
        await reader.read()
    except ConnectionResetError:
        return "lost"
    finally:
        writer.close()
    return "closed"


async def serve_plainly(parent: Channel, host: str, port: int) -> None:
    """Child: a plain server behind a port that another one has announced."""
    server = await asyncio.start_server(echo_plainly, host, port)
    parent.send(port_of(server.sockets))
    assert await parent.areceive() == "enough"
    server.close()
    await server.wait_closed()


async def echo_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100_000):
        writer.write(data)
        await writer.drain()
    writer.close()


@NAMESPACES
async def test_a_plain_server_in_another_network_costs_one_wait(
    spawn: Spawn, loop_kind: str, tmp_path: Path, two_networks: tuple[Network, Network]
) -> None:
    """What the wildcard of one container announces is true of no other: the client gives up, and remembers."""
    ours, theirs = two_networks
    options = {"rendezvous_dir": str(tmp_path)}
    async with echoing(None, SmcConfig(**options)) as echo:
        plain = spawn(serve_plainly, theirs.address, echo.target[1], loop=loop_kind, within=theirs.command)
        port = await plain.areceive()
        client = spawn(connect_in_child, theirs.address, port, options, 2, 0.2, loop=loop_kind, within=ours.command)
        assert await client.aresult() == [["tcp", "accepted_plain"], ["tcp", "listener_remembered"]]
        plain.send("enough")
        await plain.aresult()


async def serve_in_sandbox(parent: Channel, options: dict[str, Any]) -> list[list[str | None]]:
    """Child without netlink."""
    forbid_netlink()
    return await serve_in_child(parent, "127.0.0.1", options)


async def connect_in_sandbox(parent: Channel, port: int, options: dict[str, Any]) -> list[list[str | None]]:
    """Child without netlink."""
    forbid_netlink()
    return await connect_in_child(parent, "127.0.0.1", port, options, 1)


@pytest.mark.skipif(why_no_seccomp() is not None, reason=str(why_no_seccomp()))
@pytest.mark.parametrize("sandboxed", ["client", "server", "both"])
async def test_where_look_ups_are_forbidden(spawn: Spawn, loop_kind: str, tmp_path: Path, sandboxed: str) -> None:
    """A directory does where the kernel may not be asked, even if one end alone may not."""
    options = {"rendezvous_dir": str(tmp_path)}
    if sandboxed == "client":
        server = spawn(serve_in_child, "127.0.0.1", options, loop=loop_kind)
    else:
        server = spawn(serve_in_sandbox, options, loop=loop_kind)
    port = await server.areceive()
    if sandboxed == "server":
        client = spawn(connect_in_child, "127.0.0.1", port, options, 1, loop=loop_kind)
    else:
        client = spawn(connect_in_sandbox, port, options, loop=loop_kind)
    assert await client.aresult() == [["smc-d", None]]
    server.send("enough")
    assert await server.aresult() == [["smc-d", None]]


@pytest.mark.usefixtures("unannounced")
async def test_names_come_and_go(host: str, tmp_path: Path) -> None:
    async with echoing(host, shared(tmp_path)) as echo:
        names = os.listdir(tmp_path)
        assert {name[:5] for name in names} <= {"smc-l"}
        assert len(names) >= 1
        assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names} == {0o600}
        for _ in range(3):
            assert await connect(echo.target, shared(tmp_path)) == ["smc-d", None]
            assert set(os.listdir(tmp_path)) == set(names)
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("unannounced")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"])
async def test_a_dual_stack_listener(address: str, tmp_path: Path) -> None:
    sock = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    echo = Echo()
    server = await smcfast.start_smc_server(echo.serve, sock=sock, config=shared(tmp_path))
    target = address, sock.getsockname()[1]
    assert await connect(target, shared(tmp_path)) == ["smc-d", None]
    server.close()
    await server.wait_closed()


@pytest.mark.usefixtures("unannounced")
@pytest.mark.parametrize("local", ["127.0.0.1", "0.0.0.0"])
async def test_a_local_address_of_the_users_choice(local: str, tmp_path: Path) -> None:
    async with echoing("127.0.0.1", shared(tmp_path)) as echo:
        pair = await smcfast.open_smc_connection(*echo.target, local_addr=(local, 0), config=shared(tmp_path))
        assert await talk(*pair) == ["smc-d", None]


@pytest.mark.usefixtures("unannounced")
async def test_two_servers_of_one_port(tmp_path: Path) -> None:
    """Each has a name of its own, so neither stands in the other's way, and the last one takes the last name away."""
    one = socket.create_server(("127.0.0.1", 0), reuse_port=True)
    other = socket.create_server(one.getsockname(), reuse_port=True)
    target = one.getsockname()
    servers = [
        await smcfast.start_smc_server(Echo().serve, sock=sock, config=shared(tmp_path)) for sock in (one, other)
    ]
    for left in (2, 1):
        assert len(os.listdir(tmp_path)) == left
        for _ in range(5):
            assert await connect(target, shared(tmp_path)) == ["smc-d", None]
        server = servers.pop()
        server.close()
        await server.wait_closed()


FLAWS: dict[str, tuple[int, int, str]] = {
    "writable for all": (0o777, 0, "everybody may remove names from it"),
    "a stranger's": (0o755, NOBODY, "it belongs to user 65534"),
}


@ROOT
@pytest.mark.usefixtures("unannounced")
@pytest.mark.parametrize("flaw", FLAWS)
async def test_an_unsafe_directory_is_not_used(tmp_path: Path, flaw: str, caplog: pytest.LogCaptureFixture) -> None:
    mode, owner, text = FLAWS[flaw]
    unsafe = tmp_path / "unsafe"
    unsafe.mkdir()
    os.chown(unsafe, owner, owner)
    unsafe.chmod(mode)
    async with echoing("127.0.0.1", shared(unsafe)) as echo:
        assert text in caplog.text
        assert os.listdir(unsafe) == []
        _, writer = pair = await smcfast.open_smc_connection(*echo.target, config=shared(unsafe))
        assert text in writer.get_extra_info("smc").fallback.text
        assert await talk(*pair) == ["tcp", "rendezvous_dir"]
        assert echo.paths == [["tcp", "rendezvous_dir"]]


@pytest.mark.usefixtures("unannounced")
@pytest.mark.parametrize("mode", [0o700, 0o2770, 0o1777])
async def test_a_safe_directory(tmp_path: Path, mode: int) -> None:
    safe = tmp_path / "safe"
    safe.mkdir()
    safe.chmod(mode)
    async with echoing("127.0.0.1", shared(safe)) as echo:
        assert await connect(echo.target, shared(safe)) == ["smc-d", None]


@pytest.mark.usefixtures("unannounced")
@pytest.mark.parametrize("kind", ["missing", "a file", "a long path"])
async def test_what_is_no_directory_or_a_deep_one(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("x" * 200 if kind == "a long path" else "it")
    if kind == "a file":
        path.touch()
    elif kind == "a long path":
        path.mkdir()
    expected = ["smc-d", None] if kind == "a long path" else ["tcp", "rendezvous_dir"]
    async with echoing("127.0.0.1", shared(path)) as echo:
        assert await connect(echo.target, shared(path)) == expected


def connect_as(_parent: Channel, port: int, options: dict[str, Any], uid: int) -> list[str | None]:
    """Child of another user without netlink: one connection."""
    forbid_netlink()
    folder.WAIT = PATIENT  # type: ignore[misc]
    become(uid)
    return asyncio.run(connect(("127.0.0.1", port), SmcConfig(**options)))


@pytest.fixture
def sticky() -> Iterator[Path]:
    """A directory for several users, which they can reach."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o1777)
        yield Path(name)


@ROOT
@pytest.mark.skipif(why_no_seccomp() is not None, reason=str(why_no_seccomp()))
@pytest.mark.parametrize("at_client", [False, True])
@pytest.mark.parametrize("at_server", [False, True])
async def test_another_user_needs_leave_of_both(spawn: Spawn, sticky: Path, at_client: bool, at_server: bool) -> None:
    async with echoing("127.0.0.1", shared(sticky, allow_uids=(NOBODY,) if at_server else ())) as echo:
        options = {"rendezvous_dir": str(sticky), "allow_uids": (0,) if at_client else ()}
        child = spawn(connect_as, echo.target[1], options, NOBODY)
        path = await child.aresult()
        assert path[0] == ("smc-d" if at_client and at_server else "tcp")
        assert [info.path for info in echo.infos] == [path[0]]
    assert os.listdir(sticky) == []


def squat(parent: Channel, directory: str, names: list[str], uid: int) -> None:
    """Child of another user: hold names in the directory until the test has seen enough."""
    become(uid)
    with contextlib.ExitStack() as stack:
        for name in names:
            kind = socket.SOCK_DGRAM if name.startswith("smc-l") else socket.SOCK_SEQPACKET
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            sock.bind(f"{directory}/{name}")
            os.chmod(f"{directory}/{name}", 0o666)
            stack.callback(os.unlink, f"{directory}/{name}")
            if kind == socket.SOCK_SEQPACKET:
                sock.listen(8)
        parent.send("here")
        assert parent.receive() == "enough"


@ROOT
@pytest.mark.usefixtures("unannounced")
async def test_a_strangers_names_do_not_count(spawn: Spawn, sticky: Path) -> None:
    """Neither does his announcement cost a wait, nor does his door take a client's place."""
    server = await asyncio.start_server(echo_plainly, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()
    locals_ = [free_port() for _ in range(2)]
    names = [folder._listener_prefix(netlink.address(target)) + "0"]
    names += [folder._client_name(netlink.address(local), netlink.address(target)) for local in locals_]
    child = spawn(squat, str(sticky), names, NOBODY)
    assert await child.areceive() == "here"
    for local_addr in (None, locals_[0]):
        pair = await smcfast.open_smc_connection(*target, local_addr=local_addr, config=shared(sticky))
        assert await talk(*pair) == ["tcp", "peer_plain"]
    assert not remembered.listeners._until
    server.close()
    await server.wait_closed()
    echo = Echo()
    smc = await smcfast.start_smc_server(echo.serve, *target, config=shared(sticky))
    pair = await smcfast.open_smc_connection(*target, local_addr=locals_[1], config=shared(sticky))
    assert await talk(*pair) == ["tcp", "name_taken"]
    assert echo.paths == [["tcp", "uid"]]
    assert await connect(target, shared(sticky)) == ["smc-d", None]
    smc.close()
    await smc.wait_closed()
    child.send("enough")
    await child.aresult()


def free_port() -> Any:
    """A local address that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()


def found(directory: Path | str, start: str) -> list[str]:
    return [name for name in os.listdir(directory) if name.startswith(start)]


def dead(directory: Path, name: str, kind: int = socket.SOCK_SEQPACKET) -> None:
    """What a killed process leaves."""
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(str(directory / name))


@pytest.mark.usefixtures("unannounced")
async def test_dead_names_are_removed_and_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "smc-notes").touch()
    dead(tmp_path, "another-program")
    async with echoing("127.0.0.1", shared(tmp_path)) as echo:
        target = netlink.address(echo.target)
        local = free_port()
        own = folder._client_name(netlink.address(local), target)
        dead(tmp_path, own)
        dead(tmp_path, folder._listener_prefix(target) + "0", socket.SOCK_DGRAM)
        pair = await smcfast.open_smc_connection(*echo.target, local_addr=local, config=shared(tmp_path))
        assert await talk(*pair) == ["smc-d", None]
        assert not (tmp_path / own).exists()
        for number in range(1, 20):
            dead(tmp_path, f"smc-c4-7f000001-{number:x}-7f000001-1")
        # Each connect finds two at random, of which some are alive, or not ours.
        while found(tmp_path, "smc-c"):
            assert await connect(echo.target, shared(tmp_path)) == ["smc-d", None]
        for number in range(1, 20):
            dead(tmp_path, f"smc-c4-7f000001-{number:x}-7f000001-1")
        async with echoing("127.0.0.1", shared(tmp_path)):
            assert len(found(tmp_path, "smc-c")) == 0
            assert len(found(tmp_path, "smc-l")) == 2
    assert sorted(os.listdir(tmp_path)) == ["another-program", "smc-notes"]
    for name in os.listdir(tmp_path):
        (tmp_path / name).unlink()


@pytest.mark.usefixtures("unannounced")
async def test_a_dead_name_is_replaced_by_whoever_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any luck at the drawing of names."""
    monkeypatch.setattr(folder, "SWEPT_EACH", 0)
    async with echoing("127.0.0.1", shared(tmp_path)) as echo:
        target, local = netlink.address(echo.target), free_port()
        dead(tmp_path, folder._client_name(netlink.address(local), target))
        for number in range(5):
            dead(tmp_path, folder._listener_prefix(target) + str(number), socket.SOCK_DGRAM)
        pair = await smcfast.open_smc_connection(*echo.target, local_addr=local, config=shared(tmp_path))
        assert await talk(*pair) == ["smc-d", None]
    # Nobody lives there any more, and who looks for one finds that out of all.
    with pytest.raises(ConnectionRefusedError):
        await connect(echo.target, shared(tmp_path))
    assert found(tmp_path, "smc-") == []


def call_as(parent: Channel, directory: str, uid: int) -> None:
    """Child of another user: call at every client's door until the test has seen enough."""
    become(uid)
    conns = [rendezvous.call(f"{directory}/{name}".encode()) for name in found(directory, "smc-c")]
    parent.send(len(conns))
    assert parent.receive() == "enough"
    for conn in conns:
        conn.close()


@ROOT
@pytest.mark.usefixtures("unannounced")
async def test_a_stranger_at_the_door_is_sent_away(spawn: Spawn, sticky: Path) -> None:
    """Where somebody else is allowed, everybody can call; the wait goes on until one comes who may."""
    loop = asyncio.get_running_loop()
    config = shared(sticky, allow_uids=(NOBODY,))
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as tcp:
        listener.setblocking(False)
        tcp.setblocking(False)
        target = listener.getsockname()
        with (
            contextlib.closing(folder.Announcement(Folder(str(sticky), {os.geteuid()}), listener)),
            contextlib.closing(discovery.Invitation(tcp, target, config)) as invitation,
        ):
            child = spawn(call_as, str(sticky), NOBODY - 1)
            assert await child.areceive() == 1
            await loop.sock_connect(tcp, target)
            answer = asyncio.create_task(invitation.answer(tcp, loop.time() + 8))
            await turns()
            assert not answer.done()
            accepted, _ = await loop.sock_accept(listener)
            with accepted, contextlib.closing(discovery.Caller(accepted, config, busy=False)) as caller:
                assert caller.conn is not None
                conn = await answer
                assert isinstance(conn, socket.socket)
                assert rendezvous.credentials(conn)[1] == os.geteuid()
                conn.close()
            child.send("enough")
            await child.aresult()


def run_out_of_ports(_parent: Channel, address: str) -> str:
    """Child in a network of its own, which has one port."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
        file.write("40000 40000")
    with socket.socket() as one, socket.socket() as other:
        assert folder.source(one, (address, 1)).port == 40000
        with pytest.raises(folder.UnusableError) as caught:
            folder.source(other, (address, 1))
    return str(caught.value)


@NAMESPACES
def test_no_port_is_left(spawn: Spawn, two_networks: tuple[Network, Network]) -> None:
    """Only here it has to be known before the connect; a plain connect may still find one."""
    ours, theirs = two_networks
    said = spawn(run_out_of_ports, theirs.address, within=ours.command).result()
    assert said == "no local port is left that could be in a name: Address already in use"


def test_finding_out_who_lives_disturbs_nobody(tmp_path: Path) -> None:
    with rendezvous.listen(str(tmp_path / "smc-c4-1-1-1-1").encode(), 8) as door:
        assert folder._is_bound(f"{tmp_path}/", "smc-c4-1-1-1-1") is True
        with pytest.raises(BlockingIOError):
            door.accept()
    assert folder._is_bound(f"{tmp_path}/", "smc-c4-1-1-1-1") is False
    os.unlink(tmp_path / "smc-c4-1-1-1-1")


@pytest.mark.parametrize("how", ["a link", "renamed"])
def test_a_door_under_another_name_is_not_knocked_at(tmp_path: Path, how: str) -> None:
    """It is that of another connection, whose client would take us for its server."""
    server = netlink.address(("127.0.0.1", 1))
    one, other = (netlink.address(("127.0.0.1", port)) for port in (2, 3))
    names = Folder(str(tmp_path), {os.geteuid()})
    with contextlib.closing(names.listen(one, server, 1)):
        names.call(one, server).close()
        there, elsewhere = (tmp_path / folder._client_name(client, server) for client in (one, other))
        (elsewhere.symlink_to if how == "a link" else there.rename)(there if how == "a link" else elsewhere)
        with pytest.raises(ConnectionRefusedError, match="another door"):
            names.call(other, server)
        elsewhere.unlink()


def test_a_forked_child_leaves_its_parents_names(tmp_path: Path) -> None:
    held = Folder(str(tmp_path), {os.geteuid()}).announce(netlink.address(("127.0.0.1", 1)))
    pid = os.fork()
    if pid == 0:
        held.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(os.listdir(tmp_path)) == 1
    held.close()
    held.close()


@pytest.mark.usefixtures("unannounced")
async def test_a_server_that_does_not_call_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client goes on as TCP, the server finds nobody, and the next client does not wait."""
    monkeypatch.setattr(folder, "WAIT", 0.01)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with contextlib.closing(folder.Announcement(Folder(str(tmp_path), {os.geteuid()}), listener)):
            target = listener.getsockname()
            reader, writer = await smcfast.open_smc_connection(*target, config=shared(tmp_path))
            assert writer.get_extra_info("smc").fallback.text == discovery.NO_CALL
            assert found(tmp_path, "smc-c") == []
            tcp, _ = await loop.sock_accept(listener)
            with tcp, contextlib.closing(discovery.Caller(tcp, shared(tmp_path), busy=False)) as caller:
                assert caller.conn is None
                assert caller.why is not None
                assert caller.why.name == "peer_plain"
                tcp.send(b"late")
                assert await reader.readexactly(4) == b"late"
            writer.close()
            await writer.wait_closed()
            _, writer = await smcfast.open_smc_connection(*target, config=shared(tmp_path))
            assert writer.get_extra_info("smc").reason == "listener_remembered"
            writer.close()
            await writer.wait_closed()


@pytest.mark.usefixtures("unannounced")
async def test_a_server_that_is_busy_says_so(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with contextlib.closing(folder.Announcement(Folder(str(tmp_path), {os.geteuid()}), listener)):
            target = listener.getsockname()
            opening = asyncio.create_task(smcfast.open_smc_connection(*target, config=shared(tmp_path)))
            tcp, _ = await loop.sock_accept(listener)
            with tcp, contextlib.closing(discovery.Caller(tcp, shared(tmp_path), busy=True)) as caller:
                assert caller.why is not None
                assert caller.why.name == "limit"
                _, writer = await opening
                assert writer.get_extra_info("smc").reason == "peer_stopped"
                writer.close()
                await writer.wait_closed()


@pytest.mark.usefixtures("unannounced")
async def test_cancelling_the_client_at_any_time(tmp_path: Path, rng: Any) -> None:
    """No name of it stays, and the server goes on."""
    async with echoing("127.0.0.1", shared(tmp_path)) as echo:
        for _ in range(60):
            opening = asyncio.create_task(smcfast.open_smc_connection(*echo.target, config=shared(tmp_path)))
            await asyncio.sleep(rng.uniform(0, 2e-3))
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled():
                assert (await talk(*opening.result()))[0] == "smc-d"
            assert found(tmp_path, "smc-c") == []
        assert await connect(echo.target, shared(tmp_path)) == ["smc-d", None]


async def connect_for_ever(parent: Channel, port: int, directory: str) -> None:
    """Child: connect until it is killed."""
    netlink.listener_of = lambda _: None  # type: ignore[assignment]
    folder.WAIT = PATIENT  # type: ignore[misc]
    config = SmcConfig(rendezvous_dir=directory)
    while True:
        parent.send(await connect(("127.0.0.1", port), config))


async def test_clients_that_are_killed_leave_nothing_for_long(spawn: Spawn, loop_kind: str, tmp_path: Path) -> None:
    async with echoing("127.0.0.1", shared(tmp_path)) as echo:
        for _ in range(5):
            child = spawn(connect_for_ever, echo.target[1], str(tmp_path), loop=loop_kind)
            for _ in range(3):
                assert await child.areceive() == ["smc-d", None]
            os.kill(child.pid, signal.SIGKILL)
            child.kill()
    async with echoing("127.0.0.1", shared(tmp_path)):
        assert found(tmp_path, "smc-c") == []
