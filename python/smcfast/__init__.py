"""asyncio streams that take the fastest path both ends share, and say which one and why."""

from smcfast import _native
from smcfast.config import SmcConfig
from smcfast.errors import Fallback, SmcConfigError, SmcError, SmcFallbackError, SmcHandshakeError
from smcfast.info import SmcInfo
from smcfast.stats import Stats, stats

__version__ = _native.version()

__all__ = [
    "Fallback",
    "SmcConfig",
    "SmcConfigError",
    "SmcError",
    "SmcFallbackError",
    "SmcHandshakeError",
    "SmcInfo",
    "Stats",
    "__version__",
    "stats",
]
