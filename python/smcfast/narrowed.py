"""What blocking sockets can have of a configuration: smc-d and TCP, and what is told where that is the reason for TCP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smcfast import fallback, ways
from smcfast.reasons import explained

if TYPE_CHECKING:
    import socket

    from smcfast.config import SmcConfig
    from smcfast.errors import Fallback


def narrowed(config: SmcConfig) -> SmcConfig:
    """`config` with the paths that a blocking socket can have."""
    return replace(config, paths=tuple(path for path in config.paths if path == "smc-d"))


def beforehand(config: SmcConfig) -> Fallback | None:
    """Why no blocking socket of this configuration, as the user gave it, can be anything but TCP."""
    if config.paths and "smc-d" not in config.paths:
        return explained("disabled", f"blocking sockets have smc-d alone, and paths is {tuple(config.paths)}")
    return fallback.beforehand(narrowed(config))


def with_cause(why: Fallback, tcp: socket.socket, config: SmcConfig) -> Fallback:
    """`why` the connection is TCP, or that it is so because this is a blocking socket."""
    if why.name == "peer_plain" and "smc-r" in config.paths and not ways.is_here(tcp):
        return explained("peer_elsewhere", "the peer is not on this host, and blocking sockets have no smc-r")
    return why
