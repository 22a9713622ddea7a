"""`connect_smc`: what anyio's `connect_tcp` is for TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smcfast import open_smc_connection
from smcfast.contrib.anyio import backend
from smcfast.contrib.anyio.stream import SmcStream

if TYPE_CHECKING:
    from anyio.abc import IPAddressType

    from smcfast import SmcConfig


async def connect_smc(
    host: IPAddressType,
    port: int,
    *,
    local_host: IPAddressType | None = None,
    local_port: int | None = None,
    happy_eyeballs_delay: float = 0.25,
    config: SmcConfig | None = None,
) -> SmcStream:
    """Connect to `host` and `port` by the fastest path that both ends share.

    The path and, when it is "tcp", the reason are ``stream.extra(SmcAttribute.smc_info)``. For TLS wrap the stream by anyio's
    `TLSStream.wrap`.

    :param local_port: needs `local_host`.
    :param happy_eyeballs_delay: seconds until the next address of a name is tried beside the one before it.
    :param config: `SmcConfig`; None takes ``SMCFAST_*`` variables and defaults.
    :raises OSError: no address can be connected.
    :raises SmcFallbackError: the path would be "tcp" and ``config.fallback`` is "forbid".
    :raises RuntimeError: anyio does not run on asyncio.
    """
    backend.check()
    local_addr = None if local_host is None else (str(local_host), local_port or 0)
    streams = await open_smc_connection(
        str(host), port, local_addr=local_addr, happy_eyeballs_delay=happy_eyeballs_delay, config=config
    )
    return SmcStream(*streams)
