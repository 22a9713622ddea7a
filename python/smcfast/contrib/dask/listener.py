"""`SmcListener`: the end that accepts."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import dask
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, CommClosedError
from distributed.comm.utils import ensure_concrete_host

from smcfast import create_smc_server
from smcfast.contrib import port as ports
from smcfast.contrib.dask import settings
from smcfast.contrib.dask.comm import PREFIX, SmcComm
from smcfast.contrib.dask.pipe import Pipe

if TYPE_CHECKING:
    from smcfast import SmcServer

Handler: TypeAlias = Callable[[SmcComm], Awaitable[None] | None]

logger: logging.Logger = logging.getLogger(__name__)


class SmcListener(BaseListener):
    """Listens at an address, which may be a wildcard."""

    prefix = PREFIX
    """By this name distributed's workers look for it."""

    def __init__(
        self,
        address: str,
        comm_handler: Handler,
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        """Prepare to call `comm_handler` with each comm that has shaken hands.

        :param default_host: the host of `contact_address` where `address` is a wildcard.
        :raises RuntimeError: encryption is required.
        """
        super().__init__()
        settings.check_encryption(PREFIX + address, connection_args)
        self.ip: str
        self.port: int
        self.ip, self.port = parse_host_port(address, default_port)
        self.default_host = default_host
        self.comm_handler = comm_handler
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self._server: SmcServer | None = None
        self._bound: tuple[str, int] | None = None
        self._handling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen.

        :raises OSError: the address cannot be bound.
        """
        config = settings.config()
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))

        async def bind(port: int) -> SmcServer:
            host = self.ip or None
            return await create_smc_server(self._pipe, host, port, backlog=backlog, start_serving=False, config=config)

        server = await ports.shared(bind, self.port)
        # As distributed's own: IPv4 is what is told to others where there are both.
        sockets = sorted(server.sockets, key=lambda sock: sock.family != socket.AF_INET)
        self._server, self._bound = server, sockets[0].getsockname()[:2]
        await server.start_serving()

    def stop(self) -> None:
        """Accept no more; comms go on."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _pipe(self) -> Pipe:
        return Pipe(self._arrived)

    def _arrived(self, pipe: Pipe) -> None:
        task = asyncio.get_running_loop().create_task(self._handle(pipe))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _handle(self, pipe: Pipe) -> None:
        if self._server is None:
            pipe.abort()  # it would wait for a handshake that nobody bounds
            return
        comm = SmcComm(pipe, PREFIX + unparse_host_port(*pipe.peer), self.deserialize)
        comm.allow_offload = self.allow_offload
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("Connection from %s closed before its handshake was complete", comm.peer_address)
            return
        except Exception:  # whatever a stranger's message leads to
            logger.warning("Connection from %s has not shaken hands", comm.peer_address, exc_info=True)
            comm.abort()
            return
        handled = self.comm_handler(comm)
        if handled is not None:
            await handled

    def get_host_port(self) -> tuple[str, int]:
        """Host and port as bound.

        :raises ValueError: the listener was not started.
        """
        if self._bound is None:
            raise ValueError("this listener was not started")
        return self._bound

    @property
    def listen_address(self) -> str:
        """Where it listens; the host may be a wildcard."""
        return PREFIX + str(unparse_host_port(*self.get_host_port()))

    @property
    def contact_address(self) -> str:
        """Where others reach it."""
        host, port = self.get_host_port()
        return PREFIX + str(unparse_host_port(ensure_concrete_host(host, default_host=self.default_host), port))
