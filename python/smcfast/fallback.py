"""Fallback is never silent: one log line, one counter, one value that the stream carries, or one exception."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from smcfast import _native, counts, kernel, log
from smcfast.errors import Fallback, SmcFallbackError
from smcfast.info import SmcInfo
from smcfast.reasons import reason

if TYPE_CHECKING:
    from smcfast.config import SmcConfig


def beforehand(config: SmcConfig) -> Fallback | None:
    """Why no connection of this configuration can be anything but TCP; None when one has to look."""
    if not _native.AVAILABLE:
        return reason("platform")
    return _switched_off(config)


def _switched_off(config: SmcConfig) -> Fallback | None:
    """Does the configuration leave a path, and a way to find the peer, that this version has?"""
    usable = set(config.paths)
    if not usable:
        return reason("disabled")
    if "kernel" in usable:
        why = kernel.why_none()
        if why is None or usable == {"kernel"}:
            return why
    return None if config.assume or config.discovery else reason("disabled")


def settle(config: SmcConfig, role: str, peer: str, why: Fallback) -> SmcInfo:
    """The connection of `role` ("client" or "server") with `peer` is TCP: say so, as the configuration wants it.

    :raises SmcFallbackError: the configuration forbids it; the caller closes the connection.
    """
    forbidden = config.fallback == "forbid"
    counts.count_fallback(why, forbidden=forbidden)
    # A client that is refused has its exception; of a server's refusal nobody else would know.
    quiet = config.fallback == "allow" or (forbidden and role == "client")
    log.fallback(logging.INFO if quiet else logging.WARNING, role, peer, why, forbidden=forbidden)
    if forbidden:
        raise SmcFallbackError(why)
    return SmcInfo(path="tcp", fallback=why)


def fail(config: SmcConfig, peer: str, why: Fallback) -> None:
    """A handshake broke off and has spoiled the server's connection with `peer`, which is closed: no stream at all."""
    counts.count_failure(why)
    log.failure(logging.INFO if config.fallback == "allow" else logging.WARNING, peer, why)
