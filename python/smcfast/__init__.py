"""asyncio streams that take the fastest path both ends share, and say which one and why."""

from smcfast import _native
from smcfast.config import SmcConfig
from smcfast.connect import open_smc_connection
from smcfast.counts import Stats, stats
from smcfast.errors import Fallback, PeerMisbehaved, SmcConfigError, SmcError, SmcFallbackError, SmcHandshakeError
from smcfast.info import SmcInfo
from smcfast.server import SmcServer, start_smc_server

__version__ = _native.version()

__all__ = [
    "Fallback",
    "SmcConfig",
    "PeerMisbehaved",
    "SmcConfigError",
    "SmcError",
    "SmcFallbackError",
    "SmcHandshakeError",
    "SmcInfo",
    "SmcServer",
    "Stats",
    "__version__",
    "open_smc_connection",
    "start_smc_server",
    "stats",
]
