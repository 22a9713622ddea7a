"""The event loops that a command can run on."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def factory(uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop that was asked for; None, said on stderr, where it is not installed."""
    if not uvloop:
        return asyncio.new_event_loop
    try:
        module = importlib.import_module("uvloop")  # Not a dependency: only where the user has it.
    except ImportError:
        print("uvloop is not installed", file=sys.stderr)
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = module.new_event_loop
    return made
