"""What docs/asyncio-differences.md says and no other test shows."""

from __future__ import annotations

import asyncio
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
