"""The program behind the TCP option: installed or of a process's own, with and without privilege, beside others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import _core, option
from support import bpf
from support.capture import capturing
from support.echo import talk
from support.option import ONLY, Server, begin, why_not, with_option

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]
    Run = Callable[..., subprocess.CompletedProcess[str]]

NOBODY = 65534
GROUP = 54321
HERE = bpf.hierarchy()

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=f"no BPF: {why_not()}"),
    pytest.mark.skipif(HERE is None, reason="no cgroups of version 2 are mounted"),
]


@pytest.fixture
def place() -> Iterator[str]:
    """Where a program can be installed, which others can see."""
    with tempfile.TemporaryDirectory(dir="/run", prefix="smcfast-test-") as folder:
        os.chmod(folder, 0o755)
        directory = os.path.join(folder, "option")
        yield directory
        with contextlib.suppress(OSError):
            _core.remove_option(directory)


def command(run: Run, action: str, directory: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Run ``smcfast option`` with --json: its exit code and what it says."""
    done = run("-m", "smcfast", "option", action, "--json", "--directory", directory, *more)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


async def both_ends(host: str = "127.0.0.1") -> list[Any]:
    """A connection of this process with itself: the client's path and reason, the server's reasons, the segments."""
    server = Server(ONLY)
    async with server.serving(host) as target:
        with capturing(target[1]) if os.geteuid() == 0 else contextlib.nullcontext() as capture:
            pair = await smcfast.open_smc_connection(*target, config=ONLY)
            info = pair[1].get_extra_info("smc")
            path, reason = await talk(*pair)
            count = len(with_option(capture.taken())) if capture else None
    return [path, reason, server.reasons, count, info.fallback and info.fallback.text]


async def as_user(_: Channel, directory: str, uid: int, groups: list[int]) -> list[Any]:
    """Child of an unprivileged user."""
    begin()
    option.DIRECTORY = directory  # type: ignore[misc]
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    return await both_ends()


def test_without_privilege(spawn: Spawn, place: str) -> None:
    """A reason, and nothing on stderr."""
    child = spawn(as_user, place, NOBODY, [])
    path, reason, reasons, _, text = child.result()
    assert (path, reason, reasons) == ("tcp", "option_unavailable", ["option_unavailable"])
    assert text == (
        "loading a BPF program: Operation not permitted; it takes CAP_BPF and CAP_NET_ADMIN, or a program that "
        "`smcfast option install` has installed"
    )


def test_an_installed_program(spawn: Spawn, place: str, run_python: Run) -> None:
    """Members of its group need no privilege; others are told."""
    assert command(run_python, "status", place)[1]["installed"] is False
    code, told = command(run_python, "install", place, "--group", str(GROUP))
    assert (code, told["installed"], told["gid"], told["how"]) == (0, True, GROUP, "installed")
    program = bpf.attached_by(Path(place, "link"))
    assert program in bpf.attached(root())
    assert Path(place, "marks").stat().st_mode & 0o777 == 0o660
    assert Path(place, "link").stat().st_mode & 0o777 == 0o600
    assert command(run_python, "install", place)[0] == 1
    child = spawn(as_user, place, NOBODY, [GROUP])
    assert child.result()[:3] == ["smc-d", None, [None]]
    child = spawn(as_user, place, NOBODY, [])
    path, reason, _, _, text = child.result()
    assert (path, reason) == ("tcp", "option_unavailable")
    assert text.endswith(f"; {place}: opening the installed map: Permission denied")
    assert command(run_python, "remove", place)[0] == 0
    assert program not in bpf.attached(root())
    assert not os.path.exists(place)
    assert command(run_python, "remove", place) == (1, {"error": f"no program is installed at {place}"})


def test_an_installed_program_of_root_alone(spawn: Spawn, place: str, run_python: Run) -> None:
    assert command(run_python, "install", place)[1]["gid"] is None
    assert Path(place, "marks").stat().st_mode & 0o777 == 0o600
    child = spawn(as_user, place, NOBODY, [GROUP])
    assert child.result()[1] == "option_unavailable"
    command(run_python, "remove", place)


async def by_a_removed_program(_: Channel, directory: str) -> list[list[Any]]:
    """Child: connections before and after the installed program was removed."""
    begin()
    option.DIRECTORY = directory  # type: ignore[misc]
    _core.install_option(directory, None)
    found = [await both_ends()]
    _core.remove_option(directory)
    return [*found, await both_ends(), await both_ends()]


def test_a_program_that_is_removed(spawn: Spawn, place: str) -> None:
    """One connection finds out; then the process has a program of its own."""
    first, second, third = spawn(by_a_removed_program, place).result()
    assert first[:4] == ["smc-d", None, [None], 2]
    assert second[:2] == ["tcp", "option_unavailable"]
    assert "the program did not see the socket" in second[4]
    assert third[:4] == ["smc-d", None, [None], 2]


def root() -> Path:
    """The uppermost cgroup."""
    assert HERE is not None
    own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    return Path(str(HERE).removesuffix(own.rstrip("/")))


def hold(parent: Channel, cgroup: str) -> None:
    """Child: attach a program of its own, and wait for the end."""
    bpf.enter(cgroup)
    assert option.source.find() is not None
    parent.send("attached")
    parent.receive()


def test_a_killed_process_leaves_nothing_behind(spawn: Spawn) -> None:
    with bpf.new_cgroup() as cgroup:
        children = [spawn(hold, str(cgroup)) for _ in range(2)]
        for child in children:
            assert child.receive() == "attached"
        assert len(bpf.attached(cgroup)) == 2  # beside one another
        for child in children:
            child.kill()
        assert bpf.attached(cgroup) == []


async def in_cgroup(_: Channel, cgroup: str) -> list[Any]:
    """Child: a connection in a cgroup where others have programs."""
    begin()
    bpf.enter(cgroup)
    return await both_ends()


@contextlib.contextmanager
def beside(*programs: bytes) -> Iterator[str]:
    """A cgroup with programs of others."""
    with bpf.new_cgroup() as cgroup, contextlib.ExitStack() as links:
        for program in programs:
            links.callback(os.close, bpf.attach(program, cgroup))
        yield str(cgroup)


async def many_round_trips(_: Channel, cgroup: str) -> list[list[int]]:
    """Child: how often each program of the cgroup runs for a connection, and for its data."""
    begin()
    bpf.enter(cgroup)
    async with Server(ONLY).serving("127.0.0.1") as target:
        # A plain connection between marked sockets, so that the data passes the programs.
        client = socket.socket()
        assert option.announce(client) is None
        programs = bpf.attached(Path(cgroup))
        before = [bpf.runs(program) for program in programs]
        await asyncio.get_running_loop().run_in_executor(None, client.connect, target)
        reader, writer = await asyncio.open_connection(sock=client)
        writer.write(b"plain")
        await reader.readexactly(5)
        connected = [bpf.runs(program) for program in programs]
        for _round in range(100):
            writer.write(b"plain")
            await reader.readexactly(5)
        after = [bpf.runs(program) for program in programs]
        writer.close()
        await writer.wait_closed()
    return [[b - a, c - b] for a, b, c in zip(before, connected, after, strict=True)]


def test_established_connections_have_no_callbacks(spawn: Spawn) -> None:
    with bpf.counting_runs(), bpf.new_cgroup() as cgroup:
        ((begun, later),) = spawn(many_round_trips, str(cgroup)).result()
    assert begun > 4
    assert later == 0


@pytest.mark.parametrize("begin", [bpf.CONNECT, bpf.LISTEN])
def test_established_connections_keep_the_callbacks_of_others(spawn: Spawn, begin: int) -> None:
    """At the end that another program watches all segments go on to be shown to it."""
    with bpf.counting_runs(), beside(bpf.crowding(begin, 4)) as cgroup:
        others, _ = spawn(many_round_trips, cgroup).result()
    assert others[1] >= 100


def test_a_cgroup_that_is_full(spawn: Spawn) -> None:
    with beside(*[bpf.NOTHING] * 64) as cgroup:
        path, reason, *_, text = spawn(in_cgroup, cgroup).result()
    assert (path, reason) == ("tcp", "option_unavailable")
    assert "64 programs are attached to this cgroup already" in text


def test_a_syn_without_room(spawn: Spawn) -> None:
    """Another program needs the header for itself."""
    with beside(bpf.crowding(bpf.CONNECT, 16)) as cgroup:
        found = spawn(in_cgroup, cgroup).result()
    assert found[:4] == ["tcp", "option_no_room", ["peer_plain"], 0]


def test_a_syn_ack_without_room(spawn: Spawn) -> None:
    with beside(bpf.crowding(bpf.LISTEN, 16)) as cgroup:
        found = spawn(in_cgroup, cgroup).result()
    assert found[:4] == ["tcp", "peer_plain", ["option_no_room"], 1]


def test_room_for_both(spawn: Spawn) -> None:
    with beside(bpf.crowding(bpf.LISTEN, 12), bpf.crowding(bpf.CONNECT, 12)) as cgroup:
        assert spawn(in_cgroup, cgroup).result()[:4] == ["smc-d", None, [None], 2]


async def one_program_each(_: Channel, cgroup: str) -> list[int]:
    """Child: a marked client of one program, and listeners that another program's callbacks see."""
    begin()
    bpf.enter(cgroup)
    mine, others = _core.TcpOption.attach(), _core.TcpOption.attach()
    counts = []
    for listening in (None, others, mine):
        with socket.socket() as listener, socket.socket() as client:
            listener.bind(("127.0.0.1", 0))
            if listening is not None:
                listening.mark(listener.fileno())
            listener.listen()
            mine.mark(client.fileno())
            with capturing(listener.getsockname()[1]) as capture:
                client.connect(listener.getsockname())
                counts.append(len(with_option(capture.taken())))
    return counts


def test_a_listener_takes_part_in_its_own_program_alone(spawn: Spawn) -> None:
    """One that another program only watches is not answered for."""
    with beside(bpf.crowding(bpf.LISTEN, 4)) as cgroup:
        assert spawn(one_program_each, cgroup).result() == [1, 2, 2]


async def several_listeners(_: Channel, cgroup: str) -> list[int]:
    """Child: whether a port's SYN/ACKs have the option while two, one and none of its listeners are marked."""
    begin()
    bpf.enter(cgroup)
    program = _core.TcpOption.attach()
    counts = []
    with contextlib.ExitStack() as stack:
        target = ("127.0.0.1", 0)
        marked = []
        for marks in (True, True, False):
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(target)
            target = listener.getsockname()
            if marks:
                program.mark(listener.fileno())
                marked.append(listener)
            listener.listen()
        capture = stack.enter_context(capturing(target[1]))
        for closing in (None, *marked):
            if closing is not None:
                closing.close()
            client = stack.enter_context(socket.socket())
            program.mark(client.fileno())
            client.connect(target)
            counts.append(len(with_option(capture.taken())))
    return counts


def test_a_port_is_answered_for_while_a_listener_takes_part(spawn: Spawn) -> None:
    """Another program watches them all, so each SYN/ACK is asked about."""
    with beside(bpf.crowding(bpf.LISTEN, 4)) as cgroup:
        assert spawn(several_listeners, cgroup).result() == [2, 2, 1]


@pytest.mark.parametrize("action", ["install", "remove", "status"])
def test_help_has_an_example_and_the_exit_codes(run_python: Run, action: str) -> None:
    done = run_python("-m", "smcfast", "option", action, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Example: smcfast option {action}" in done.stdout
    assert "Exit code: 0 " in done.stdout


def test_a_group_that_does_not_exist(run_python: Run, place: str) -> None:
    done = run_python("-m", "smcfast", "option", "install", "--directory", place, "--group", "no such group")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("argument --group: no such group: 'no such group'\n")


def test_the_commands_in_words(run_python: Run, place: str) -> None:
    def say(action: str, *more: str) -> tuple[int, str, str]:
        done = run_python("-m", "smcfast", "option", action, "--directory", place, *more)
        return done.returncode, done.stdout, done.stderr

    assert say("install", "--group", "0") == (0, f"installed at {place}, for group root\n", "")
    code, said, complaints = say("status")
    assert (code, complaints) == (0, "")
    assert said.startswith(f"installed: at {place}, for group root\nthis user: by the installed program\n")
    assert say("install") == (1, "", f"a program is installed at {place} already: remove it first\n")
    assert say("remove") == (0, "removed\n", "")
    assert say("remove") == (1, "", f"no program is installed at {place}\n")
    assert say("status")[1].startswith(f"installed: no, not at {place}\nthis user: each process attaches")
