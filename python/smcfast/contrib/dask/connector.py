"""`SmcConnector`: the end that connects."""

from __future__ import annotations

from typing import Any

from distributed.comm.addressing import parse_host_port
from distributed.comm.core import Connector

from smcfast import create_smc_connection
from smcfast.contrib.dask import settings
from smcfast.contrib.dask.comm import PREFIX, SmcComm
from smcfast.contrib.dask.pipe import Pipe


class SmcConnector(Connector):
    """Makes comms; distributed tries again when it fails, and bounds the time."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> SmcComm:
        """A comm with `address`, which is host and port.

        :raises OSError: nobody is there, or the path would be "tcp" and that is forbidden.
        :raises RuntimeError: encryption is required.
        """
        settings.check_encryption(PREFIX + address, connection_args)
        host, port = parse_host_port(address)
        _, pipe = await create_smc_connection(Pipe, host, port, config=settings.config())
        return SmcComm(pipe, PREFIX + address, deserialize)
