"""The logger ``smcfast``, and ``SMCFAST_LOG`` which shows it without any set-up.

Nothing happens at import: the variable is read when the first connection or server is opened.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from smcfast.errors import SmcConfigError

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from smcfast.errors import Fallback
    from smcfast.info import SmcInfo

logger: logging.Logger = logging.getLogger("smcfast")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_lock = threading.Lock()
_done = False


def _renew() -> None:
    """Another thread may have held the lock when this process was forked."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def set_up() -> None:
    """Obey ``SMCFAST_LOG`` once in this process.

    :raises SmcConfigError: the variable names no level.
    """
    global _done
    if _done:
        return
    with _lock:
        if not _done:
            _obey(os.environ.get("SMCFAST_LOG"))
            _done = True


def _obey(text: str | None) -> None:
    if text is None or not text.strip():
        return
    level = _LEVELS.get(text.strip().lower())
    if level is None:
        raise SmcConfigError(f"environment variable SMCFAST_LOG={text!r}: must be one of {', '.join(_LEVELS)}")
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s:%(name)s[%(process)d]: %(message)s"))
        logger.addHandler(handler)
        # Whoever configures the root logger later must not see each line twice.
        logger.propagate = False


def name(address: object) -> str:
    """An end of a connection for people: host:port, [v6]:port, or the path of a unix socket."""
    if address is None:
        return "a lost peer"
    if not isinstance(address, tuple):
        return str(address) or "an unnamed socket"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer(sock: socket.socket) -> str:
    """The name of the end that `sock` is connected with."""
    try:
        return name(sock.getpeername())
    except OSError:
        return "a lost peer"


def established(role: str, sock: socket.socket, info: SmcInfo) -> None:
    """One line at DEBUG for one connection that has a faster path; `role` is "client" or "server"."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s connection with %s is %s, set up in %s us", role, peer(sock), info.path, info.setup_us)


def fallback(level: int, role: str, peer: str, why: Fallback, *, forbidden: bool) -> None:
    """One line for one connection that is TCP, or would have been and is `forbidden`."""
    logger.log(
        level,
        "%s connection with %s is %s: %s",
        role,
        peer,
        "refused, as it would be TCP" if forbidden else "TCP",
        why,
        extra={"smc_code": why.code, "smc_name": why.name},
    )


def failure(level: int, peer: str, why: Fallback) -> None:
    """One line for one connection of a server that a broken handshake has spoiled."""
    extra = {"smc_code": why.code, "smc_name": why.name}
    logger.log(level, "server connection with %s is closed: %s", peer, why, extra=extra)


def skipped(ports: Sequence[str]) -> None:
    """One line at DEBUG for one connection that has a device, after `ports` that do not fit, each with what it lacks."""
    if ports:
        logger.debug("RDMA devices that are passed over: %s", "; ".join(ports))
