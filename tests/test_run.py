"""`smcfast run`: programs that know nothing of smcfast, as processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import invited, patterns, wrapping
from support.addresses import HOSTS, listening, why_unusable
from support.streams import End, echo, pattern

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Ran = Callable[..., subprocess.CompletedProcess[str]]

UNMODIFIED = str(Path(__file__).parent / "support" / "unmodified.py")


@pytest.fixture
def ran(run_python: Run, tmp_path: Path) -> Ran:
    """``ran(program, *options)`` runs the text of a program by smcfast run."""

    def start(
        text: str, *options: str, arguments: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(text)
        return run_python("-W", "error", "-m", "smcfast", "run", *options, str(program), *arguments, env=env)

    return start


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a program that was run with --json says at its end, when it ended well and said nothing else there."""
    assert done.returncode == 0, done.stderr
    return last(done.stderr)


def last(said: str) -> dict[str, Any]:
    (line,) = said.splitlines()
    words: dict[str, Any] = json.loads(line)
    return words


class Served:
    """A server of `UNMODIFIED`: its places, and what it said when it has ended."""

    places: list[str]
    said = ""


@contextlib.contextmanager
def serving(kind: str, *run: str, hosts: tuple[str, ...] = ("127.0.0.1",)) -> Iterator[Served]:
    """The server of `UNMODIFIED`, begun by `run`; it ends with the block."""
    command = [sys.executable, "-W", "error", *run, UNMODIFIED, kind, "serve", *hosts]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    served = Served()
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        served.places = json.loads(process.stdout.readline())
        yield served
        _, served.said = process.communicate("")
    assert process.returncode == 0, served.said


RUN = "-m", "smcfast", "run", "--json"


@pytest.mark.smoke
def test_unmodified_programs_talk_by_smc(loop_kind: str, run_python: Run) -> None:
    """Streams, protocols, and sockets that the program connects; two servers at each address, three clients of each."""
    hosts = tuple(host for host in HOSTS if why_unusable(host) is None)
    with serving(loop_kind, *RUN, hosts=hosts) as server:
        done = run_python("-W", "error", *RUN, UNMODIFIED, loop_kind, "ask", *server.places)
    assert json.loads(done.stdout) == [[True] * 3] * len(server.places)
    assert len(server.places) == 2 * len(hosts)
    for end in (told(done), last(server.said)):
        assert end["paths"]["smc-d"] == sum(end["paths"].values()) == 6 * len(hosts), end
        assert end["fallbacks"] == {}


def test_plain_peers_get_plain_connections(loop_kind: str, run_python: Run) -> None:
    with serving(loop_kind) as server:
        done = run_python("-W", "error", *RUN, UNMODIFIED, loop_kind, "ask", *server.places)
    assert json.loads(done.stdout) == [[True] * 3] * 2
    assert told(done)["fallbacks"] == {"peer_plain": 6}
    with serving(loop_kind, *RUN) as server:
        done = run_python("-W", "error", UNMODIFIED, loop_kind, "ask", *server.places)
    assert (json.loads(done.stdout), done.stderr) == ([[True] * 3] * 2, "")
    assert last(server.said)["fallbacks"] == {"peer_plain": 6}


def test_patterns_choose(run_python: Run) -> None:
    """What is left alone is not negotiated either: the server finds plain clients, and at once."""
    asked: list[tuple[list[str], str, int]] = [
        (["--not", "127.0.0.0/8:*"], "127.0.0.1", 0),
        (["--only", "*:1"], "127.0.0.1", 0),
        (["--only", "127.0.0.1:*", "--not", "*:1"], "127.0.0.1", 6),
        (["--not", "localhost:*"], "localhost", 2),  # a socket is connected to an address, which has no name
    ]
    with serving("asyncio", *RUN, hosts=("127.0.0.1", "localhost")) as server:
        for options, host, smc in asked:
            places = [place for place in server.places if place.startswith(host)]
            done = run_python("-W", "error", *RUN, *options, UNMODIFIED, "asyncio", "ask", *places)
            assert json.loads(done.stdout) == [[True] * 3] * 2
            assert told(done)["fallbacks"] == ({"not_chosen": 6 - smc} if smc < 6 else {})
    end = last(server.said)
    assert (end["paths"]["smc-d"], end["fallbacks"]) == (8, {"peer_plain": 16})


def test_a_server_that_is_left_alone(run_python: Run) -> None:
    with serving("asyncio", *RUN, "--not", "127.0.0.1:*") as server:
        done = run_python("-W", "error", *RUN, UNMODIFIED, "asyncio", "ask", *server.places)
    assert told(done)["fallbacks"] == {"peer_plain": 6}
    assert sum(last(server.said)["paths"].values()) == 0


@pytest.mark.parametrize(
    ("only", "never", "taken"),
    [
        ([], [], True),
        (["localhost:*"], [], True),
        (["LOCALHOST:80"], [], True),
        (["localhost:81"], [], False),
        (["127.0.0.0/8:80"], [], True),
        (["10.0.0.0/8:80"], [], False),
        ([], ["127.0.0.1:*", "[::1]:*"], False),
        (["*:80"], ["localhost:80"], False),
    ],
)
async def test_how_a_name_is_chosen(only: list[str], never: list[str], taken: bool) -> None:
    choice = wrapping.Choice(tuple(map(patterns.parse, only)), tuple(map(patterns.parse, never)))
    assert await choice.takes_host("localhost", 80) is taken
    assert await choice.takes_host(["localhost"], "80") is taken


MAIN = """
import json, os, sys
print(json.dumps([__name__, __file__, sys.argv, sys.path, __spec__ and __spec__.name, sys.flags.dev_mode, sorted(os.environ), "asyncio" in sys.modules,
    "smcfast" in sys.modules, "sitecustomize" in sys.modules]))
sys.exit(7)
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_the_program_sees_what_python_shows_it(tmp_path: Path, as_module: bool) -> None:
    """And pays for nothing as long as it does not use asyncio."""
    (tmp_path / "program.py").write_text(MAIN)
    words = ["-m", "program", "-m", "--json"] if as_module else ["program.py", "-m", "--json"]
    seen = []
    for run in ([], ["-m", "smcfast", "run", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-X", "dev", *run, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (7, "")
        seen.append(json.loads(done.stdout))
    assert seen[0][:-1] == seen[1][:-1]


CHILDREN = """
import asyncio, os, subprocess, sys
async def talk():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    await reader.read()
    writer.close()
    server.close()
asyncio.run(talk())
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
    subprocess.run([sys.executable, "-c", "print('nothing to tell')"], check=True)
print("SMCFAST_RUN" in os.environ, "started" in os.environ.get("PYTHONPATH", ""))
"""


def test_children_take_part_when_told_so(ran: Ran) -> None:
    done = ran(CHILDREN, "--children", "--json")
    assert done.stdout == "True True\nnothing to tell\nTrue True\n"
    child, parent = map(json.loads, done.stderr.splitlines())
    assert child["pid"] != parent["pid"]
    assert child["paths"]["smc-d"] == parent["paths"]["smc-d"] == 2


def test_children_are_left_alone_otherwise(ran: Ran) -> None:
    done = ran(CHILDREN, "--json")
    assert done.stdout == "False False\nnothing to tell\nFalse False\n"
    assert told(done)["paths"]["smc-d"] == 2


def test_the_sitecustomize_of_others_is_loaded(ran: Ran, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('theirs')")
    program = (
        "import sitecustomize, asyncio\nprint(sitecustomize.__file__, hasattr(asyncio.open_connection, '__wrapped__'))"
    )
    done = ran(program, "--quiet", env={"PYTHONPATH": str(theirs)})
    # Once in the interpreter that begins it, once in the program's.
    assert (done.stdout, done.stderr) == (f"theirs\ntheirs\n{theirs}/sitecustomize.py True\n", "")


SIZES = """
import asyncio
async def main():
    loop = asyncio.get_running_loop()
    accepted = asyncio.Event()
    server = await loop.create_server(lambda: accepted.set() or asyncio.Protocol(), "127.0.0.1", 0)
    transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
    print(transport.get_write_buffer_limits(), transport.get_extra_info("smc").rmb_size)
    await accepted.wait()
    transport.close()
    server.close()
asyncio.run(main())
"""


def test_sizes_and_the_line_for_people(ran: Ran) -> None:
    done = ran(SIZES, "--receive-size", "64K", "--send-size", "1M")
    assert done.stdout == f"{(1 << 18, 1 << 20)} 65536\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("smcfast[")
    assert line.endswith("]: connections: 2 (2 smc-d)")


FILE = """
import asyncio, sys
async def main():
    loop = asyncio.get_running_loop()
    got = loop.create_future()
    async def take(reader, writer):
        got.set_result(await reader.read())
        writer.close()
    server = await asyncio.start_server(take, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    with open(sys.argv[1], "rb") as file:
        print(await loop.sendfile(writer.transport, file, 10, 2_000_000), file.tell())
        print(await loop.sendfile(writer.transport, file, 2_000_010), file.tell())
        try:
            await loop.sendfile(writer.transport, file, fallback=False)
        except asyncio.SendfileNotAvailableError:
            print("not available")
    writer.write_eof()
    with open(sys.argv[1], "rb") as file:
        print(await got == file.read()[10:])
    writer.close()
    server.close()
asyncio.run(main())
"""


def test_files_are_sent(ran: Ran, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(pattern(3_000_000))
    done = ran(FILE, "--json", arguments=[str(file)])
    assert done.stdout == "2000000 2000010\n999990 3000000\nnot available\nTrue\n"
    assert told(done)["paths"]["smc-d"] == 2


def test_the_example_of_run(run_python: Run) -> None:
    example = Path(__file__).parents[1] / "examples" / "run" / "lines.py"
    done = run_python("-W", "error", *RUN, str(example))
    assert done.stdout == "b'HELLO\\n'\n"
    assert told(done)["paths"]["smc-d"] == 2


FORBIDDEN = """
import asyncio, sys
async def main():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    try:
        await asyncio.open_connection(*server.sockets[0].getsockname())
    except OSError as error:
        print(error)
asyncio.run(main())
"""


def test_diagnostics(ran: Ran) -> None:
    done = ran(FORBIDDEN, "--not", "*:1", "--fallback", "forbid", "--paths", "", "--log", "info", "--json")
    assert done.returncode == 1  # the server may not be plain either
    assert "SmcFallbackError" in done.stderr
    done = ran(CHILDREN, "--log", "debug", "--quiet")
    assert done.stderr.count("is smc-d") == 2


RAW = """
import asyncio, socket
async def main():
    loop = asyncio.get_running_loop()
    async def echo(reader, writer):
        writer.write(await reader.read(100))
        writer.close()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    for send in (loop.sock_sendall, None):
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
        if send is None:
            sock.send(b"raw ")
        else:
            await send(sock, b"raw ")
        reader, writer = await asyncio.open_connection(sock=sock)
        print(await reader.read())
        writer.close()
    with socket.socket() as sock:  # and one that nobody uses
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
    server.close()
asyncio.run(main())
"""


def test_a_socket_that_the_program_has_used_stays_plain(ran: Ran) -> None:
    done = ran(RAW, "--json")
    assert done.stdout == "b'raw '\nb'raw '\n"
    paths = told(done)["paths"]
    assert paths["smc-d"] == 0


async def _connected(port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    address = ("127.0.0.1", port)
    try:
        await invited.connecting(sock, address, lambda: loop.sock_connect(sock, address))
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    with listening("127.0.0.1") as (sockets, port):
        server = await smcfast.start_smc_server(echo, sock=sockets[0].dup())
    yield port
    server.close()
    await server.wait_closed()


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("use", ["take", "forget", "drop", "late", "close"])
async def test_an_invitation_ends_with_its_use(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if use == "late":
        monkeypatch.setattr(invited, "PATIENCE", 0.0)
    async with echoing() as port:
        sock = await _connected(port)
        if use == "forget":
            wrapping._using(lambda *_: None, asyncio.get_running_loop(), sock)
        elif use == "close":
            sock.close()
        elif use == "late":
            await asyncio.sleep(0.01)
        if use in ("take", "forget", "late"):
            end = End(*await smcfast.open_smc_connection(sock=sock))
            assert end.info.path == ("smc-d" if use == "take" else "tcp")
            end.writer.write(b"x")
            assert await end.reader.readexactly(1) == b"x"
            end.writer.close()
            await end.closed()
        sock.close()
        del sock
        gc.collect()


@pytest.mark.usefixtures("nothing_is_left")
async def test_a_connect_that_fails_leaves_no_invitation() -> None:
    async with echoing() as port:
        pass
    with pytest.raises(ConnectionRefusedError):
        await _connected(port)
    gc.collect()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "neither a program nor a module is named"),
        (["-m"], "neither a program nor a module is named"),
        (["--only", "x", "p.py"], "has no port"),
        (["--send-size", "x", "p.py"], "must be bytes"),
        (["--receive-size", "3", "p.py"], "SMCFAST_RMB_SIZE='3'"),
        (["--log", "loud", "p.py"], "SMCFAST_LOG='loud'"),
    ],
)
def test_misuse_of_run(run_python: Run, words: list[str], fault: str) -> None:
    done = run_python("-m", "smcfast", "run", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert fault in done.stderr.splitlines()[-1]


def test_an_interpreter_that_ignores_its_environment(run_python: Run) -> None:
    done = run_python("-I", "-m", "smcfast", "run", "p.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert os.environ.get("SMCFAST_RUN") is None
