"""Fallback is never silent: one log line, one counter, one value that the stream carries, or one exception."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from smcfast import _native, counts, log
from smcfast.errors import Fallback, SmcFallbackError
from smcfast.info import SmcInfo
from smcfast.reasons import reason

if TYPE_CHECKING:
    from smcfast.config import SmcConfig


def beforehand(config: SmcConfig, tls: bool) -> Fallback | None:
    """Why no connection of this configuration can be anything but TCP; None when one has to look."""
    if not _native.AVAILABLE:
        return reason("platform")
    if tls:
        return reason("tls")
    if "smc-d" not in config.paths or not ("rendezvous" in config.discovery or config.assume):
        return reason("disabled")
    return None


def settle(config: SmcConfig, role: str, peer: object, why: Fallback, setup_us: int | None = None) -> SmcInfo:
    """The connection of `role` ("client" or "server") with `peer` is TCP: say so, as the configuration wants it.

    :raises SmcFallbackError: the configuration forbids it; the caller closes the connection.
    """
    forbidden = config.fallback == "forbid"
    counts.count_fallback(why, forbidden=forbidden)
    log.fallback(logging.INFO if config.fallback == "allow" else logging.WARNING, role, peer, why)
    if forbidden:
        raise SmcFallbackError(why)
    return SmcInfo(path="tcp", fallback=why, setup_us=setup_us)
