"""What a stream tells of itself, and what `help` tells of that."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
import types
import typing
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, SmcInfo, log
from support.addresses import listening
from support.tls import client_context, server_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

Ends = tuple[SmcInfo, SmcInfo]


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[tuple[str, int], asyncio.Queue[SmcInfo]]]:
    """A server that hangs up with its client: its address, and what its streams say of themselves."""
    infos: asyncio.Queue[SmcInfo] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        infos.put_nowait(writer.get_extra_info("smc"))
        await reader.read()
        writer.close()

    server = await smcfast.start_smc_server(serve, "127.0.0.1", 0, **options)
    async with server:
        yield server.sockets[0].getsockname(), infos


async def both_ends(config: SmcConfig | None = None, **server_options: Any) -> Ends:
    """One connection's client and server."""
    async with serving(**server_options) as (target, infos):
        options = {"ssl": client_context()} if "ssl" in server_options else {}
        _, writer = await smcfast.open_smc_connection(*target, config=config, **options)
        server = await infos.get()
        writer.close()
        await writer.wait_closed()
        return writer.get_extra_info("smc"), server


def is_a(value: object, annotation: Any) -> bool:
    """Is `value` what `annotation` says?"""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return value in typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return any(is_a(value, one) for one in typing.get_args(annotation))
    return isinstance(value, origin or annotation)


@pytest.mark.parametrize("path", ["smc-d", "tcp"])
async def test_each_field_has_the_type_that_it_is_said_to_have(path: str) -> None:
    config = SmcConfig(paths=("smc-d",) if path == "smc-d" else ())
    for info in await both_ends(config) + await both_ends(config):
        assert info.path == path
        hints = typing.get_type_hints(SmcInfo)
        assert list(hints) == [field.name for field in dataclasses.fields(SmcInfo)]
        wrong = {name: getattr(info, name) for name, hint in hints.items() if not is_a(getattr(info, name), hint)}
        assert wrong == {}
        filled = {name for name in hints if getattr(info, name) is not None}
        common = {"path", "setup_us"}
        d = {"version", "eid", "rmb_size", "peer_rmb_size", "gid", "peer_gid", "link_group", "read_counters"}
        assert filled - {"release"} == common | (d if path == "smc-d" else {"fallback"})


async def test_only_the_first_connection_of_a_link_group_has_a_release() -> None:
    async with serving() as (target, infos):
        seen = []
        for _ in range(2):
            _, writer = await smcfast.open_smc_connection(*target)
            info = writer.get_extra_info("smc")
            server = await infos.get()
            assert (info.link_group, info.release) == (server.link_group, server.release)
            seen.append(info)
            # It stays open: an empty link group may end.
            writer.close()
        await writer.wait_closed()
        assert [info.release for info in seen] == [1, None]
        assert seen[0].link_group == seen[1].link_group


DELAY = 0.04


async def hang_up_too(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def test_a_clients_set_up_has_tls_in_it() -> None:
    """Nobody answers the client's TLS for a while, which is what is measured here."""
    with listening("127.0.0.1") as (listeners, port):
        began = time.perf_counter()
        opening = asyncio.create_task(smcfast.open_smc_connection("127.0.0.1", port, ssl=client_context()))
        await asyncio.sleep(DELAY)
        assert not opening.done()
        async with await asyncio.start_server(hang_up_too, sock=listeners[0], ssl=server_context()):
            _, writer = await opening
            total = (time.perf_counter() - began) * 1e6
            writer.close()
            await writer.wait_closed()
    assert DELAY * 0.5e6 <= writer.get_extra_info("smc").setup_us <= total + 1


async def test_a_servers_set_up_has_tls_in_it() -> None:
    """The client begins TLS late: the server has accepted it at the beginning of its sleep."""
    async with serving(ssl=server_context()) as (target, infos):
        _, writer = await asyncio.open_connection(*target)
        await asyncio.sleep(DELAY)
        await writer.start_tls(client_context(), server_hostname=target[0])
        info = await infos.get()
        writer.close()
        await writer.wait_closed()
    assert info.setup_us is not None
    assert info.setup_us >= DELAY * 0.5e6


async def test_no_path_is_without_a_set_up_time() -> None:
    configs: list[tuple[SmcConfig, dict[str, Any]]] = [
        (SmcConfig(), {}),
        (SmcConfig(paths=()), {}),
        (SmcConfig(), {"ssl": server_context()}),
    ]
    for config, options in configs:
        began = time.perf_counter()
        ends = await both_ends(config, **options)
        total = (time.perf_counter() - began) * 1e6
        for info in ends:
            assert info.setup_us is not None
            assert 0 < info.setup_us <= total + 1


async def test_an_established_stream_is_a_line_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "smcfast"):
        client, server = await both_ends()
    lines = sorted(record.message for record in caplog.records if record.name == "smcfast")
    assert len(lines) == 2
    assert {record.levelno for record in caplog.records if record.name == "smcfast"} == {logging.DEBUG}
    for line, role, info in zip(lines, ("client", "server"), (client, server), strict=True):
        assert line.startswith(f"{role} connection with 127.0.0.1:")
        assert line.endswith(f" is smc-d, set up in {info.setup_us} us")


@pytest.mark.parametrize("fallback", ["allow", "forbid"])
@pytest.mark.parametrize("options", [{"ssl": True}, {}])
async def test_a_peer_has_one_name(
    host: str, caplog: pytest.LogCaptureFixture, fallback: Any, options: dict[str, Any]
) -> None:
    """Refused before the connect or behind it, or taken: the line has the same name, and says which it was."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, host, 0) as server:
        address, port = server.sockets[0].getsockname()[:2]
        with caplog.at_level(logging.DEBUG, "smcfast"), contextlib.suppress(OSError):
            config = SmcConfig(fallback=fallback)
            _, writer = await smcfast.open_smc_connection(address, port, config=config, **options)
            writer.close()
            await writer.wait_closed()
    (line,) = (record.message for record in caplog.records if record.name == "smcfast")
    name = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    what = "TCP: " if fallback == "allow" else "refused, as it would be TCP: "
    assert line.startswith(f"client connection with {name} is {what}")


async def test_a_server_that_refuses_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "smcfast"):
        async with serving(config=SmcConfig(fallback="forbid")) as (target, _):
            reader, writer = await asyncio.open_connection(*target)
            name = log.name(writer.get_extra_info("sockname"))
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
    (record,) = (record for record in caplog.records if record.name == "smcfast")
    assert record.levelno == logging.WARNING
    assert record.message.startswith(f"server connection with {name} is refused, as it would be TCP: the peer did not")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (("127.0.0.1", 80), "127.0.0.1:80"),
        (("::1", 80, 0, 0), "[::1]:80"),
        (("fe80::1%eth0", 80, 0, 2), "[fe80::1%eth0]:80"),
        ("/run/socket", "/run/socket"),
    ],
)
def test_names_of_peers(address: object, name: str) -> None:
    assert log.name(address) == name


DESCRIBED: list[tuple[type[Any], Callable[[dataclasses.Field[Any]], object]]] = [
    (SmcConfig, lambda field: field.default.default),
    (SmcInfo, lambda field: field.default),
]


@pytest.mark.parametrize(("described", "default"), DESCRIBED)
def test_help_has_each_field_with_its_default(described: type[Any], default: Callable[[Any], object]) -> None:
    text = " ".join((described.__doc__ or "").split()).partition(":raises")[0]
    told = dict(part.split(":", 1) for part in text.split(":param ")[1:])
    assert list(told) == [field.name for field in dataclasses.fields(described)]
    for field in dataclasses.fields(described):
        if field.default is not dataclasses.MISSING:
            expected = repr(default(field)).replace("'", '"')
            assert told[field.name].strip().endswith(f"Default: {expected}."), field.name


def public() -> list[Any]:
    """Everything that a user can call or read about."""
    things = [getattr(smcfast, name) for name in smcfast.__all__]
    members = [value for thing in things if isinstance(thing, type) for value in vars(thing).values()]
    return [thing for thing in things + members if isinstance(thing, types.FunctionType)]


UNDERSTOOD = {
    "Any",
    "Awaitable",
    "Buffer",
    "Callable",
    "Literal",
    "Mapping",
    "Sequence",
    "Self",
    "_ProtocolT",  # as typeshed calls it in the event loop's methods
    "asyncio",
    "os",
    "socket",
    "ssl",
    "trsock",
}


@pytest.mark.parametrize("function", public(), ids=lambda function: function.__qualname__)
def test_signatures_have_names_that_a_user_knows(function: types.FunctionType) -> None:
    """An alias of the package would be shown by `help` as its name alone."""
    import ast
    import builtins

    known = UNDERSTOOD | set(smcfast.__all__) | set(dir(builtins))
    if function.__name__.startswith("_") and function.__name__ != "__init__":
        return
    for annotation in function.__annotations__.values():
        tree = ast.parse(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "None"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert names <= known
