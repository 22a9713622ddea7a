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
    from smcfast.errors import Fallback

logger = logging.getLogger("smcfast")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_lock = threading.Lock()
_done = False


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


def fallback(level: int, role: str, peer: object, why: Fallback) -> None:
    """One line for one connection that is TCP; `role` is "client" or "server"."""
    logger.log(
        level,
        "%s connection with %s is TCP: %s (%s, 0x%08X)",
        role,
        peer,
        why.text,
        why.name,
        why.code,
        extra={"smc_code": why.code, "smc_name": why.name},
    )
