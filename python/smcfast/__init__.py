"""asyncio streams that take the fastest path both ends share, and say which one and why."""

from smcfast import _native
from smcfast.blocking import SmcSocket, create_connection, create_server
from smcfast.config import SmcConfig
from smcfast.connect import create_smc_connection, open_smc_connection
from smcfast.counts import Stats, stats
from smcfast.errors import (
    Fallback,
    PeerMisbehaved,
    SmcConfigError,
    SmcError,
    SmcFallbackError,
    SmcHandshakeError,
    SmcLinkError,
)
from smcfast.held import smc_info
from smcfast.info import SmcInfo
from smcfast.kernel import AF_SMC, IPPROTO_SMC, SMCPROTO_SMC, SMCPROTO_SMC6
from smcfast.listener import SmcListener
from smcfast.loans import Reservation, View
from smcfast.server import SmcServer, create_smc_server, start_smc_server
from smcfast.streams import SmcStreamReader, SmcStreamWriter

__version__ = _native.version()

__all__ = [
    "AF_SMC",
    "IPPROTO_SMC",
    "SMCPROTO_SMC",
    "SMCPROTO_SMC6",
    "Fallback",
    "SmcConfig",
    "PeerMisbehaved",
    "Reservation",
    "SmcConfigError",
    "SmcError",
    "SmcFallbackError",
    "SmcHandshakeError",
    "SmcInfo",
    "SmcLinkError",
    "SmcListener",
    "SmcServer",
    "SmcSocket",
    "SmcStreamReader",
    "SmcStreamWriter",
    "Stats",
    "View",
    "__version__",
    "create_connection",
    "create_server",
    "create_smc_connection",
    "create_smc_server",
    "open_smc_connection",
    "smc_info",
    "start_smc_server",
    "stats",
]
