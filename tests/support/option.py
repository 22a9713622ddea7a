"""Ends of connections for tests of the TCP option."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from typing import TYPE_CHECKING, Any

import smcfast
from smcfast import SmcConfig, option, remembered
from support.capture import OPTION
from support.echo import echo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.capture import Segment

ONLY = SmcConfig(discovery=("option",))
HASTY = SmcConfig(discovery=("option",), handshake_timeout=0.3)


@functools.cache
def why_not() -> str | None:
    """Why no program can be attached here, or None."""
    found = option.find("/nonexistent")
    return found.text if isinstance(found, smcfast.Fallback) else None


def begin() -> None:
    """As if a device were there; with a program of this process's own, and nothing remembered. For children."""
    option.smcr_possible = lambda config: "smc-r" in config.paths
    option.source = option.Source()
    remembered.announced._until.clear()


class Server:
    """An echo server that says what its connections were."""

    def __init__(self, config: SmcConfig) -> None:
        self._config = config
        self.infos: list[smcfast.SmcInfo] = []
        self.ended = asyncio.Event()
        """A connection has ended."""

    @contextlib.asynccontextmanager
    async def serving(self, host: str | None = None, **options: Any) -> AsyncIterator[tuple[str, int]]:
        port = None if host is None else 0
        server = await smcfast.start_smc_server(self._serve, host, port, config=self._config, **options)
        try:
            yield server.sockets[0].getsockname()[:2]
        finally:
            server.close()
            server.close_clients()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.infos.append(writer.get_extra_info("smc"))
        await echo(reader, writer)
        self.ended.set()

    @property
    def reasons(self) -> list[str | None]:
        return [info.reason for info in self.infos]


def with_option(segments: list[Segment]) -> list[Segment]:
    return [segment for segment in segments if OPTION in segment.options]


def bound(host: str) -> socket.socket:
    """A socket of the family of `host`, bound to it."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.bind((host, 0))
    return sock
