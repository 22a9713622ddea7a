"""What docs/asyncio-differences.md says and no other test shows."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest

import smcfast
from smcfast import SmcConfig
from support.streams import connected

ROOT = Path(__file__).resolve().parents[1]


def test_the_readme_leads_there() -> None:
    assert "](docs/asyncio-differences.md)" in (ROOT / "README.md").read_text()


def test_a_server_has_all_that_asyncios_has_and_is_none() -> None:
    assert issubclass(smcfast.SmcServer, asyncio.AbstractServer)
    assert not issubclass(smcfast.SmcServer, asyncio.Server)
    missing = {name for name in dir(asyncio.Server) if not name.startswith("_")} - set(dir(smcfast.SmcServer))
    assert missing == set()
    assert {"close_clients", "abort_clients"} <= set(dir(smcfast.SmcServer))


async def test_no_file_is_sent_by_the_loop(host: str) -> None:
    async with connected(host) as (client, _):
        with tempfile.TemporaryFile() as file:
            file.write(b"nothing of this arrives")
            with pytest.raises((RuntimeError, NotImplementedError)):
                await asyncio.get_running_loop().sendfile(client.writer.transport, file)


async def test_drain_leaves_a_ring_full_under_way(host: str) -> None:
    """Nobody reads, and the ring's size can be written and drained all the same."""
    async with connected(host, config=SmcConfig(rmb_size=1 << 20)) as (client, server):
        client.writer.write(bytes(1 << 20))
        await client.writer.drain()
        assert client.writer.transport.get_write_buffer_size() == 0
        assert len(await server.reader.readexactly(1 << 20)) == 1 << 20


@pytest.mark.parametrize(
    ("path", "config"), [("smc-d", SmcConfig(fallback="forbid")), ("tcp", SmcConfig(paths=()))], ids=["smc-d", "tcp"]
)
async def test_what_a_peer_sees_of_the_end(path: str, config: SmcConfig) -> None:
    """A handler that raised is a clean end on either path; the first drain after that is where they differ."""

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half")
        raise ValueError("on purpose")

    loop = asyncio.get_running_loop()
    complaints: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    async with await smcfast.start_smc_server(fail, "127.0.0.1", 0, config=config) as server:
        reader, writer = await smcfast.open_smc_connection(*server.sockets[0].getsockname(), config=config)
        assert writer.get_extra_info("smc").path == path
        assert await reader.read() == b"half"
        writer.write(b"late")
        raised: object = None
        try:
            await writer.drain()
        except ConnectionResetError as error:
            raised = error
        assert (raised is not None) == (path == "smc-d")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    assert [str(context["exception"]) for context in complaints] == ["on purpose"]


async def test_start_tls_works_where_smcfast_is_switched_off() -> None:
    from support.tls import client_context, server_context

    async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"STARTTLS\n"
        writer.write(b"go on\n")
        await writer.start_tls(server_context())
        writer.write(await reader.readline())
        writer.close()

    config = SmcConfig(paths=())
    server = await smcfast.start_smc_server(upgrade, "127.0.0.1", 0, config=config)
    async with server:
        reader, writer = await smcfast.open_smc_connection(*server.sockets[0].getsockname(), config=config)
        writer.write(b"STARTTLS\n")
        assert await reader.readline() == b"go on\n"
        await writer.start_tls(client_context(), server_hostname="localhost")
        writer.write(b"hidden\n")
        assert await reader.readline() == b"hidden\n"
        writer.close()
        await writer.wait_closed()
