"""asyncio streams that take the fastest path both ends share, and say which one and why."""

from smcfast._core import __version__

__all__ = ["__version__"]
