"""Field reports, section F: containers, namespaces and users."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import shutil
import socket
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, folder, netlink, remembered
from support.namespaces import ISOLATED, networks, why_none
from support.process import abstract_names, descriptors
from support.steered import greeted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

NAMESPACES = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")
F_GET_SEALS, SHRINK, GROW = 1034, 2, 4
"""Facts: linux/fcntl.h."""


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered.listeners._until.clear()
    monkeypatch.setattr(folder, "WAIT", 8.0)


@contextlib.asynccontextmanager
async def echoing(host: str = "127.0.0.1", **options: Any) -> AsyncIterator[tuple[Any, list[list[str | None]]]]:
    """A server that echoes, and the paths of its connections, each with its reason."""
    paths: list[list[str | None]] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = writer.get_extra_info("smc")
        paths.append([info.path, info.reason])
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100_000):
                writer.write(data)
        writer.close()

    server = await smcfast.start_smc_server(echo, host, 0, **options)
    try:
        yield server.sockets[0].getsockname(), paths
    finally:
        server.close()
        server.close_clients()
        await server.wait_closed()


async def connect(host: str, port: int, **options: Any) -> list[str | None]:
    reader, writer = await smcfast.open_smc_connection(host, port, **options)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()
    info = writer.get_extra_info("smc")
    return [info.path, info.reason]


async def connect_in_child(_parent: Channel, host: str, port: int) -> list[str | None]:
    """Child: one connection, as the environment configures it."""
    folder.WAIT = 8.0  # type: ignore[misc]
    return await connect(host, port)


async def serve_in_child(parent: Channel, host: str) -> list[list[str | None]]:
    """Child: serve until the parent has enough, as the environment configures it."""
    async with echoing(host) as (target, paths):
        parent.send(target[1])
        assert await parent.areceive() == "enough"
        return paths


def why_no_user_namespaces(*options: str) -> str | None:
    """Why there can be no user namespace here, or None."""
    if shutil.which("unshare") is None:
        return "user namespaces are made with unshare, which is not here"
    tried = subprocess.run(["unshare", "--user", *options, "true"], capture_output=True, text=True, check=False)
    return f"user namespaces are refused here: {tried.stderr.strip()}" if tried.returncode else None


@pytest.mark.parametrize("mapped", [True, False])
async def test_report_56_a_user_namespace_is_no_obstacle(spawn: Spawn, loop_kind: str, mapped: bool) -> None:
    """Nothing is opened by way of /proc/PID/fd. Who has the same user is on the ring, who has none at all is TCP."""
    options = ("--map-current-user",) if mapped else ()
    if why := why_no_user_namespaces(*options):
        pytest.skip(why)
    async with echoing() as (target, paths):
        child = spawn(connect_in_child, *target, loop=loop_kind, within=["unshare", "--user", *options])
        path, reason = await child.aresult()
        if mapped:
            assert [path, reason] == ["smc-d", None]
            assert paths == [["smc-d", None]]
        else:
            assert (path, reason) in (("tcp", "uid"), ("tcp", "peer_stopped"), ("tcp", "server_spoke_first"))
            assert [each[0] for each in paths] == ["tcp"]


@NAMESPACES
async def test_report_57_two_pods_of_one_node_follow_the_recipe(spawn: Spawn, loop_kind: str, tmp_path: Path) -> None:
    """A directory that both mount, of mode 0700, and one variable: see docs/discovery.md."""
    names = tmp_path / "names"
    names.mkdir(mode=0o700)
    variable = {"SMCFAST_RENDEZVOUS_DIR": str(names)}
    with networks() as (ours, theirs):
        server = spawn(
            serve_in_child, theirs.address, loop=loop_kind, env=variable, within=[*theirs.command, *ISOLATED]
        )
        port = await server.areceive()
        client = [connect_in_child, theirs.address, port]
        inside = [*ours.command, *ISOLATED]
        assert await spawn(*client, loop=loop_kind, env=variable, within=inside).aresult() == ["smc-d", None]
        assert await spawn(*client, loop=loop_kind, within=inside).aresult() == ["tcp", "peer_plain"]
        server.send("enough")
        assert await server.aresult() == [["smc-d", None], ["tcp", "peer_plain"]]
    assert os.listdir(names) == []


async def relay(parent: Channel, host: str, port: int) -> None:
    """Child: a plain relay of one connection to `host` and `port`."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        beyond, onward = await asyncio.open_connection(host, port)
        await asyncio.gather(pump(reader, onward), pump(beyond, writer))
        done.set()

    done = asyncio.Event()
    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    parent.send(server.sockets[0].getsockname())
    await done.wait()
    server.close()
    await server.wait_closed()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


async def test_report_58_an_address_of_this_host_proves_nothing(spawn: Spawn, loop_kind: str) -> None:
    """A relay on the loopback address: both ends are on this host and speak SMC, but not on one connection."""
    async with echoing() as (target, paths):
        child = spawn(relay, *target, loop=loop_kind)
        assert await connect(*await child.areceive()) == ["tcp", "peer_plain"]
        assert paths == [["tcp", "peer_plain"]]
        await child.aresult()


@NAMESPACES
async def test_report_58_the_same_address_in_two_containers_is_not_the_same_host(spawn: Spawn, loop_kind: str) -> None:
    """Every container has a 127.0.0.1, and a server of ours in one of them is nothing to a client in another."""
    async with echoing() as (target, paths):
        with networks() as (ours, _):
            plain = spawn(serve_plainly, *target, loop=loop_kind, within=ours.command)
            assert await plain.areceive() == list(target)
            client = spawn(connect_in_child, *target, loop=loop_kind, within=ours.command)
            assert await client.aresult() == ["tcp", "peer_plain"]
            plain.send("enough")
            assert await plain.aresult() == [b"hello".hex()]
        assert paths == []


async def serve_plainly(parent: Channel, host: str, port: int) -> list[str]:
    """Child: a plain server that echoes, and all that it has got."""
    got = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            got.append(data.hex())
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, host, port)
    parent.send(server.sockets[0].getsockname())
    assert await parent.areceive() == "enough"
    server.close()
    await server.wait_closed()
    return got


def in_dev_shm() -> set[str]:
    """What has our name there, and what this process has open or mapped; others make files as they like."""
    held = (*descriptors().values(), *Path("/proc/self/maps").read_text().splitlines())
    named = {path.name for path in Path("/dev/shm").glob("*smc*")}
    return named | {each for each in held if " /dev/shm/" in f" {each}"}


async def test_report_61_memory_is_sealed_and_has_no_name() -> None:
    """What goes over to the peer is sealed, and nobody else can find it; with the process it is gone."""
    shared = in_dev_shm()
    async with echoing() as (target, _):
        async with greeted(target) as client:
            memory = client.go[1][0]
            assert fcntl.fcntl(memory, F_GET_SEALS) & (SHRINK | GROW) == SHRINK | GROW
            assert os.fstat(memory).st_nlink == 0
            for size in (0, os.fstat(memory).st_size * 2):
                with pytest.raises(PermissionError):
                    os.ftruncate(memory, size)
        assert in_dev_shm() <= shared
    assert abstract_names() == set()


def reach_as(_parent: Channel, directory: str, uid: int) -> list[str]:
    """Child of another user: try every name in a directory."""
    names = os.listdir(directory)
    os.setgroups([])
    os.setuid(uid)
    outcomes = []
    for name in names:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect(f"{directory}/{name}")
            except OSError as error:
                outcomes.append(type(error).__name__)
            else:
                outcomes.append("reached")
    return outcomes


@ROOT
async def test_report_61_names_are_their_users_alone(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory that everybody can use, names have mode 0600, and another user cannot even call."""
    import tempfile

    monkeypatch.setattr(netlink, "listener_of", lambda _: None)  # so that the directory is asked
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o1777)
        config = SmcConfig(rendezvous_dir=directory)
        async with echoing(config=config) as (target, _):
            modes = [stat.S_IMODE(os.stat(f"{directory}/{name}").st_mode) for name in os.listdir(directory)]
            assert modes == [0o600]
            assert await spawn(reach_as, directory, 65534).aresult() == ["PermissionError"]
            assert await connect(*target, config=config) == ["smc-d", None]
        assert os.listdir(directory) == []


async def connect_poorly(_parent: Channel, host: str, port: int) -> list[str | None]:
    """Child: one connection, where no memory may be locked."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    return await connect(host, port)


@NAMESPACES
async def test_report_62_neither_a_common_ipc_namespace_nor_locked_memory_is_needed(
    spawn: Spawn, loop_kind: str
) -> None:
    """And /dev/shm may be as small as it can be."""
    small = ["sh", "-c", 'mount -t tmpfs -o size=4k tmpfs /dev/shm && exec "$@"', "sh"]
    async with echoing() as (target, paths):
        within = ["unshare", "--ipc", "--mount", *small]
        child = spawn(connect_poorly, *target, loop=loop_kind, within=within)
        assert await child.aresult() == ["smc-d", None]
        assert paths == [["smc-d", None]]
