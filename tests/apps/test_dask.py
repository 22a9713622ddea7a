"""Dask's distributed scheduler over ``smc://``: the comm by itself, and a cluster of processes that computes something."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("distributed", reason="Dask is not installed here")

import cloudpickle
import dask
import dask.array
import distributed
import numpy as np
import psutil
from distributed.comm import CommClosedError, connect, listen
from distributed.comm.addressing import get_address_host, get_local_address_for, resolve_address
from distributed.comm.registry import get_backend
from distributed.protocol import to_serialize

import smcfast
from smcfast.contrib.dask import SmcBackend, SmcComm, frames
from smcfast.contrib.dask.pipe import SLICE, SPACE, Pipe
from support.addresses import refusing, why_unusable
from support.streams import eventually

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

PATHS = ("smc-d", "tcp")
pytestmark = [
    # distributed's own words on itself
    pytest.mark.filterwarnings("ignore::DeprecationWarning:distributed", "ignore::FutureWarning:distributed"),
]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Connections of this process take it."""
    name: str = request.param
    with dask.config.set({"distributed.comm.smc": {"paths": ["smc-d"] if name == "smc-d" else []}}):
        yield name


@pytest.fixture(params=["127.0.0.1", "[::1]"])
def number(request: pytest.FixtureRequest) -> str:
    host: str = request.param
    if reason := why_unusable(host.strip("[]")):
        pytest.skip(reason)
    return host


@contextlib.asynccontextmanager
async def joined(path: str, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[tuple[SmcComm, SmcComm]]:
    """A client's comm and a server's, on the path that was asked for."""
    arrived: asyncio.Future[SmcComm] = asyncio.get_running_loop().create_future()
    async with listen(f"smc://{host}:0", arrived.set_result, **options) as listener:
        client = await connect(listener.contact_address, **options)
        server = await arrived
    try:
        assert {comm.extra_info["smc"].path for comm in (client, server)} == {path}
        yield client, server
    finally:
        for comm in (client, server):
            comm.abort()
            await comm._pipe.lost


async def sent(giver: SmcComm, taker: SmcComm, message: Any) -> Any:
    """What arrives of a message."""
    _, came = await asyncio.gather(giver.write(message), taker.read())
    return came


def words(*numbers: int) -> memoryview:
    return memoryview(b"".join(each.to_bytes(8, "little") for each in numbers))


# Addresses.


def test_the_scheme_is_found_by_its_entry_point() -> None:
    assert isinstance(get_backend("smc"), SmcBackend)


def test_addresses_are_those_of_tcp() -> None:
    assert get_address_host("smc://[::1]:80") == "::1"
    assert resolve_address("smc://localhost:80") in ("smc://127.0.0.1:80", "smc://[::1]:80")
    assert get_local_address_for("smc://127.0.0.1:80") == "smc://127.0.0.1"
    if why_unusable("::1") is None:
        assert get_local_address_for("smc://[::1]:80") == "smc://[::1]"


async def test_both_ends_know_their_addresses(path: str, number: str) -> None:
    async with joined(path, number) as (client, server):
        assert client.local_address.startswith(f"smc://{number}:")
        assert client.local_address == server.peer_address == server.remote_info["address"]
        assert server.local_address == client.peer_address == client.remote_info["address"]
        assert client.same_host
        assert client.local_info["pickle-protocol"] == server.remote_info["pickle-protocol"]
        assert client.handshake_options == server.handshake_options
        assert client.handshake_options["compression"] is None
        assert path == "smc-d" or server.extra_info["smc"].reason == "disabled"


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "", "[::]"])
async def test_a_wildcard_has_an_address_to_be_reached_by(path: str, wildcard: str) -> None:
    if wildcard != "0.0.0.0" and (reason := why_unusable("::1")):
        pytest.skip(reason)
    arrived: asyncio.Queue[SmcComm] = asyncio.Queue()
    async with listen(f"smc://{wildcard}:0", arrived.put_nowait) as listener:
        assert listener.listen_address.startswith("smc://[::]:" if "::" in wildcard else "smc://0.0.0.0:")
        assert get_address_host(listener.contact_address) not in ("", "0.0.0.0", "::")
        port = listener.get_host_port()[1]
        local = {"0.0.0.0": ["127.0.0.1"], "": ["127.0.0.1", "[::1]"], "[::]": ["[::1]"]}[wildcard]
        for host in local:  # one port for both families
            client = await connect(f"smc://{host}:{port}")
            server = await arrived.get()
            assert {comm.extra_info["smc"].path for comm in (client, server)} == {path}
            for comm in (client, server):
                comm.abort()
                await comm._pipe.lost


async def test_the_host_to_be_reached_by_is_chosen() -> None:
    async with listen("smc://0.0.0.0:0", lambda _: None, default_host="192.0.2.7") as listener:
        assert listener.contact_address == f"smc://192.0.2.7:{listener.get_host_port()[1]}"
    async with listen("smc://:0", lambda _: None, default_host="192.0.2.7") as listener:
        assert get_address_host(listener.contact_address) == "192.0.2.7"


# Messages.


async def test_a_message_arrives_as_it_was(path: str, number: str) -> None:
    message = {"op": "x", "n": 2**40, "several": (1.5, None, "é", b"bytes"), "nested": {"a": {"b": ()}}}
    async with joined(path, number) as (client, server):
        assert await sent(client, server, message) == message
        assert await sent(server, client, message) == message


@pytest.mark.parametrize("deserialize", [True, False])
async def test_big_arrays_are_read_into_their_own_memory(
    path: str, deserialize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is longer than distributed's shards, which TCP's comm puts together again by a copy."""
    made: dict[int, int] = {}
    own = frames.host_array

    def noted(size: int) -> memoryview:
        array = own(size)
        made[np.frombuffer(array, "u1").__array_interface__["data"][0] if size else 0] = size
        return array

    monkeypatch.setattr(frames, "host_array", noted)
    arrays = [np.arange(100_000_000 // 8), np.random.default_rng(1).random((300, 1000))]
    async with joined(path, deserialize=deserialize) as (client, server):
        came = await sent(client, server, {"data": [to_serialize(each) for each in arrays]})
        if not deserialize:
            sizes = [frame.nbytes for each in came["data"] for frame in each.frames]
            assert sizes == [each.nbytes for each in arrays]
            return
        for array, expected in zip(came["data"], arrays, strict=True):
            assert (array == expected).all()
            assert array.flags.writeable
            assert made[array.__array_interface__["data"][0]] == array.nbytes


async def test_frames_of_any_size_arrive(path: str, rng: random.Random) -> None:
    """Sizes around every limit: what is joined, read ahead, or written at once."""
    edges = [0, 1, frames.JOIN_MAX, SPACE, SLICE, 2 * SLICE]
    sizes = [max(edge + off, 0) for edge in edges for off in (-9, -8, -1, 0, 1, 8)]
    sizes += [rng.randrange(3000) for _ in range(200)]
    rng.shuffle(sizes)
    pieces = [rng.randbytes(size) for size in sizes]
    async with joined(path) as (client, server):
        _, came = await asyncio.gather(frames.write(client._pipe, pieces), frames.read(server._pipe))
        assert [bytes(frame) for frame in came] == pieces
        for size in sizes:  # and each as a message by itself
            piece = rng.randbytes(size)
            _, came = await asyncio.gather(frames.write(client._pipe, [piece]), frames.read(server._pipe))
            assert [bytes(frame) for frame in came] == [piece]
        assert await sent(client, server, "still fine") == "still fine"


async def test_many_small_messages_arrive_in_order(path: str, number: str) -> None:
    count = 3000
    async with joined(path, number) as (client, server):

        async def write(comm: SmcComm) -> None:
            for each in range(count):
                await comm.write({"n": each})

        async def read(comm: SmcComm) -> list[int]:
            return [(await comm.read())["n"] for _ in range(count)]

        *_, one, other = await asyncio.gather(write(client), write(server), read(client), read(server))
        assert one == other == list(range(count))


async def test_two_writers_do_not_mix_their_messages(path: str) -> None:
    arrays = [np.full(2_000_000, each, "u1") for each in range(4)]
    async with joined(path) as (client, server):
        writing = [asyncio.create_task(client.write(to_serialize(each))) for each in arrays]
        came = [await server.read() for _ in arrays]
        await asyncio.gather(*writing)
        assert sorted(int(each[0]) for each in came) == [0, 1, 2, 3]
        assert all((each == each[0]).all() for each in came)


async def test_a_message_that_comes_byte_by_byte_is_whole(path: str) -> None:
    async with joined(path) as (client, server):
        data = bytes(words(2, 3, 5)) + b"abcdefgh"
        reading = asyncio.create_task(frames.read(server._pipe))
        for byte in data:
            await client._pipe.write([memoryview(bytes([byte]))])
            await asyncio.sleep(0)
        assert [bytes(frame) for frame in await reading] == [b"abc", b"defgh"]


async def test_who_writes_waits_for_who_reads(path: str) -> None:
    async with joined(path) as (client, server):
        array = np.zeros(50_000_000, "u1")
        writing = asyncio.create_task(client.write(to_serialize(array)))
        await eventually(lambda: client._pipe._writer is not None)
        assert 0 < client._pipe.transport.get_write_buffer_size() <= SLICE
        assert not writing.done()
        assert (await server.read()).nbytes == array.nbytes
        await writing


# Ends.


async def test_a_close_is_heard_behind_what_was_written(path: str, number: str) -> None:
    async with joined(path, number) as (client, server):
        for each in range(3):
            await client.write({"n": each, "data": to_serialize(np.zeros(20_000, "u1"))})
        await client.close()
        assert client.closed()
        await eventually(lambda: server._pipe._has_ended)
        assert not server.closed()  # there is something to be read
        assert [(await server.read())["n"] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(CommClosedError):
            await server.read()
        assert server.closed()
        for use in (server.read, lambda: server.write("x"), client.read, lambda: client.write("x")):
            with pytest.raises(CommClosedError):
                await use()
        await client.close()
        await server.close()


async def test_a_close_sends_what_waits(path: str) -> None:
    async with joined(path) as (client, server):
        client._pipe.transport.write(bytes(words(1, 10_000_000)) + bytes(10_000_000))
        closing = asyncio.create_task(client.close())
        (came,) = await frames.read(server._pipe)
        assert came.nbytes == 10_000_000
        await closing


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_a_read_that_waits_hears_of_the_end(path: str, end: str) -> None:
    async with joined(path) as (client, server):
        reading = [asyncio.create_task(comm.read()) for comm in (client, server)]
        await asyncio.sleep(0)
        client.abort() if end == "abort" else await client.close()
        for each in reading:
            with pytest.raises(CommClosedError):
                await each
        assert client.closed()
        assert server.closed()


async def test_a_write_that_waits_hears_of_the_end(path: str) -> None:
    async with joined(path) as (client, server):
        writing = asyncio.create_task(client.write(to_serialize(np.zeros(50_000_000, "u1"))))
        await eventually(lambda: client._pipe._writer is not None)
        server.abort()
        with pytest.raises(CommClosedError):
            await writing
        assert client.closed()


async def test_an_idle_comm_notices_that_its_peer_is_gone(path: str) -> None:
    """A pool looks at closed() before it hands a comm out again."""
    async with joined(path) as (client, server):
        server.abort()
        await eventually(client.closed)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_read_that_is_cancelled_closes_the_comm(path: str, begun: bool) -> None:
    async with joined(path) as (client, server):
        reading = asyncio.create_task(server.read())
        if begun:
            await client._pipe.write([words(1, 1_000_000), memoryview(bytes(500_000))])
            await eventually(lambda: server._pipe._target is not None)
        else:
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert server.closed()
        with pytest.raises(CommClosedError):
            await client.read()


async def test_a_write_that_is_cancelled_closes_the_comm(path: str) -> None:
    async with joined(path) as (client, server):
        writing = asyncio.create_task(client.write(to_serialize(np.zeros(50_000_000, "u1"))))
        await eventually(lambda: client._pipe._writer is not None)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert client.closed()
        with pytest.raises(CommClosedError):
            await server.read()


async def test_a_message_that_is_cut_off_is_a_closed_comm(path: str) -> None:
    for cut in (3, 8, 12, 24, 100, 100_000):
        async with joined(path) as (client, server):
            data = (bytes(words(2, 50, 200_000)) + bytes(200_050))[:cut]
            await client._pipe.write([memoryview(data)])
            await client.close()
            with pytest.raises(CommClosedError):
                await server.read()
            assert server.closed()


@pytest.mark.parametrize(
    "lie",
    [
        (frames.FRAMES_MAX + 1,),
        (2**64 - 1,),
        (1, frames.bytes_max() + 1),
        (2, frames.bytes_max(), 1),
        (3, 2**63, 2**63, 1),
    ],
)
async def test_a_peer_that_lies_about_lengths_is_refused(
    path: str, lie: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with joined(path) as (client, server):
        monkeypatch.setattr(frames, "host_array", None)  # it is refused before memory is asked for
        await client._pipe.write([words(*lie)])
        with pytest.raises(CommClosedError, match="there may be"):
            await server.read()
        assert server.closed()
        monkeypatch.undo()
        with pytest.raises(CommClosedError):
            await client.read()


async def test_the_longest_message_is_let_in(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with joined(path) as (client, server):
        monkeypatch.setattr(frames, "bytes_max", lambda: 30)
        monkeypatch.setattr(frames, "FRAMES_MAX", 3)
        await frames.write(client._pipe, [b"x" * 10] * 3)
        assert [bytes(frame) for frame in await frames.read(server._pipe)] == [b"x" * 10] * 3


async def test_who_is_no_comm_is_refused_by_the_listener(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with listen("smc://127.0.0.1:0", lambda _: None) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.get_host_port()[1])
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()  # its handshake, and the end
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    assert "closed before its handshake was complete" in caplog.text


async def test_who_does_not_shake_hands_is_refused_by_the_listener(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with listen("smc://127.0.0.1:0", lambda _: None) as listener:
        pipe = Pipe()
        await smcfast.create_smc_connection(lambda: pipe, *listener.get_host_port())
        assert pipe.info.path == path
        await frames.read(pipe)
        await frames.write(pipe, [b"\x93\x01\x02\x03"])  # a list in msgpack
        with pytest.raises(ConnectionError):
            await frames.read(pipe)
        pipe.abort()
        await pipe.lost
    assert "has not shaken hands" in caplog.text


async def test_a_comm_that_nobody_closes_is_closed(path: str, caplog: pytest.LogCaptureFixture) -> None:
    arrived: asyncio.Future[SmcComm] = asyncio.get_running_loop().create_future()
    async with listen("smc://127.0.0.1:0", arrived.set_result) as listener:
        client = await connect(listener.contact_address)
        server = await arrived
    pipe = client._pipe
    del client
    gc.collect()
    await pipe.lost
    assert "dangling" in caplog.text
    with pytest.raises(CommClosedError):
        await server.read()


# Setting up.


async def test_nobody_listens(path: str, number: str) -> None:
    with refusing(number.strip("[]")) as port, pytest.raises(OSError, match="Timed out"):
        await connect(f"smc://{number}:{port}", timeout=0.2)


async def test_a_stopped_listener_takes_no_more(path: str) -> None:
    listener = await listen("smc://127.0.0.1:0", lambda _: None)
    with pytest.raises(OSError, match="in use"):
        await listen(listener.listen_address, lambda _: None)
    address = listener.contact_address
    listener.stop()
    listener.stop()
    with pytest.raises(OSError, match="Timed out"):
        await connect(address, timeout=0.2)


async def test_a_connection_made_while_the_listener_stops_is_refused(path: str) -> None:
    """Its client waits for a handshake that nobody bounds."""
    listener = await listen("smc://127.0.0.1:0", lambda _: None)
    own = listener._arrived

    def arrived(pipe: Pipe) -> None:
        listener.stop()
        own(pipe)

    listener._arrived = arrived
    pipe = Pipe()
    await smcfast.create_smc_connection(lambda: pipe, *listener.get_host_port())
    assert pipe.info.path == path
    with pytest.raises(ConnectionError):
        await frames.read(pipe)
    pipe.abort()
    await pipe.lost


async def test_a_handshake_under_way_ends_with_the_listener(path: str) -> None:
    listener = await listen("smc://127.0.0.1:0", lambda _: None)
    pipe = Pipe()
    await smcfast.create_smc_connection(lambda: pipe, *listener.get_host_port())
    assert pipe.info.path == path
    await frames.read(pipe)  # the listener's half
    listener.stop()
    listener.abort_handshaking_comms()
    with pytest.raises(ConnectionError):
        await frames.read(pipe)
    pipe.abort()
    await pipe.lost


async def test_encryption_is_not_promised() -> None:
    with pytest.raises(RuntimeError, match="does not encrypt"):
        await connect("smc://127.0.0.1:1", require_encryption=True)
    with pytest.raises(RuntimeError, match="does not encrypt"):
        await listen("smc://127.0.0.1:0", lambda _: None, require_encryption=True)


async def test_tcp_is_forbidden_by_the_configuration() -> None:
    async with listen("smc://127.0.0.1:0", lambda _: None) as listener:
        with dask.config.set({"distributed.comm.smc": {"paths": [], "fallback": "forbid"}}):
            with pytest.raises(OSError, match="Timed out") as caught:
                await connect(listener.contact_address, timeout=0.2)
    assert isinstance(caught.value.__cause__, smcfast.SmcFallbackError)


async def test_dasks_configuration_has_our_fields() -> None:
    with dask.config.set({"distributed.comm.smc": {"rmb-size": 65536, "paths": ["smc-d"]}}):
        async with joined("smc-d") as (client, _):
            assert client.extra_info["smc"].rmb_size == 65536
    with dask.config.set({"distributed.comm.smc": {"rmb-size": 1}}), pytest.raises(smcfast.SmcConfigError):
        await listen("smc://127.0.0.1:0", lambda _: None)


async def test_a_dead_host_is_noticed_on_tcp() -> None:
    with dask.config.set({"distributed.comm.smc": {"paths": []}, "distributed.comm.timeouts.tcp": "30s"}):
        async with joined("tcp") as ends:
            for comm in ends:
                sock = comm._pipe.transport.get_extra_info("socket")
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                idle, interval, probes = (sock.getsockopt(socket.IPPROTO_TCP, name) for name in names)
                assert idle + interval * probes == 30


def test_dask_is_imported_by_its_adapter_alone(run_python: Callable[..., Any]) -> None:
    code = "import sys, smcfast; assert not {'dask', 'distributed', 'smcfast.contrib'} & set(sys.modules)"
    done = run_python("-W", "error", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


# Clusters.


def told(dask_worker: Any = None, dask_scheduler: Any = None) -> dict[str, Any]:
    """Runs in a process of the cluster: what its connections are."""
    node = dask_worker or dask_scheduler
    stats = smcfast.stats()
    return {
        "address": node.address,
        "pid": os.getpid(),
        "connections": {name: count for name, count in stats["connections"].items() if count},
        "fallbacks": {name: count for name, count in stats["fallbacks"].items() if count},
        "received": stats["totals"]["bytes_received"],
        "resident": psutil.Process().memory_info().rss,
    }


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command of distributed's, in this environment."""
    command = [sys.executable, "-m", "distributed.cli." + arguments[0], *arguments[1:]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        lines: list[str] = []
        listening = threading.Thread(target=lambda: lines.extend(running.stderr or ()))
        listening.start()
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
            listening.join()
            print("".join(lines))  # a failure shows it


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[distributed.Client]:
    """A scheduler and two workers, each a process, and a client in this one."""
    file = str(folder / "scheduler.json")
    local = ("--local-directory", str(folder))
    with contextlib.ExitStack() as stack:
        scheduler = ("--protocol", "smc", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        stack.enter_context(process("dask_scheduler", *scheduler, "--scheduler-file", file))
        for name in ("one", "two"):
            worker = (
                "--name",
                name,
                "--nthreads",
                "1",
                "--no-nanny",
                "--memory-limit",
                "2GiB",
                "--dashboard-address",
                "127.0.0.1:0",
            )
            listen_at = ("--protocol", "smc", "--host", "127.0.0.1")
            stack.enter_context(process("dask_worker", *worker, *listen_at, *local, "--scheduler-file", file))
        client = stack.enter_context(distributed.Client(scheduler_file=file, timeout=60))
        client.wait_for_workers(2, timeout=60)
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # they cannot import this file
        stack.callback(cloudpickle.unregister_pickle_by_value, sys.modules[__name__])
        yield client


@pytest.mark.timeout(180)
def test_a_cluster_computes_with_an_array_of_a_gigabyte(tmp_path: Path) -> None:
    """x + x.T and a rechunk, where one worker has the upper 6 of 11 rows of blocks, and the other one the lower 5.

    x[i, j] is i * n + j, so every sum is known exactly. For x + x.T at least one of two blocks has to cross wherever they lie apart.
    """
    n, chunk, upper = 11264, 1024, 6
    crossing = upper * (n // chunk - upper) * chunk * chunk * 8
    with cluster(tmp_path) as client, dask.config.set({"array.rechunk.method": "tasks"}):
        whole = dask.array.fromfunction(lambda i, j: i * n + j, shape=(n, n), chunks=chunk, dtype="f8")
        top, bottom = whole[: upper * chunk], whole[upper * chunk :]
        x = dask.array.concatenate([client.persist(top, workers=["one"]), client.persist(bottom, workers=["two"])])
        distributed.wait(x)
        assert x.nbytes > 1e9
        sums = (x + x.T).sum(axis=1)
        tall = x.rechunk((n, chunk // 2))
        ordered = (tall[1:] - tall[:-1]).mean(axis=0)
        along, down = client.compute([sums, ordered], sync=True)
        both = client.run(told)
        scheduler = client.run_on_scheduler(told)
    index = np.arange(n, dtype="f8")
    total = n * (n - 1) // 2
    assert (along == index * n * n + total + total * n + n * index).all()
    assert (down == n).all()
    nodes = [*both.values(), scheduler]
    assert all(node["address"].startswith("smc://127.0.0.1:") for node in nodes)
    assert len({node["pid"] for node in nodes} | {os.getpid()}) == 4
    for node in nodes:
        assert set(node["connections"]) == {"smc-d"}, nodes
        assert node["fallbacks"] == {}
    assert sum(node["received"] for node in both.values()) > crossing > 250e6, nodes
    assert all(node["resident"] < 2 * 2**30 for node in both.values()), nodes


def test_a_cluster_within_one_process() -> None:
    """Client, scheduler and workers in loops of one process."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="smc://", dashboard_address=None
    ) as local:
        assert local.scheduler_address.startswith("smc://")
        with distributed.Client(local) as client:
            data = client.scatter(np.arange(1_000_000.0), workers=[min(client.scheduler_info()["workers"])])
            other = max(client.scheduler_info()["workers"])
            assert client.submit(lambda array: array.sum(), data, workers=[other]).result() == 499_999_500_000.0
