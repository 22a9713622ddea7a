"""The one place that imports the native core, and copes without it.

On other systems than Linux, or where the core is missing, the package still imports and every connection is TCP.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AVAILABLE", "diagnoses", "version"]

AVAILABLE: bool
"""True when this process can use a path other than TCP."""

if sys.platform == "linux":
    try:
        from smcfast import _core
    except ImportError as error:
        if "subinterpreter" in str(error):
            # TCP alone would work, but the wish was for something else, and processes or threads can have it.
            raise ImportError(
                "smcfast cannot be used in a subinterpreter, since its native core has one state for the whole process; "
                "use processes, or threads with an event loop each"
            ) from error
        AVAILABLE = False
    else:
        AVAILABLE = True
else:  # pragma: no cover
    AVAILABLE = False


def diagnoses() -> Mapping[int, tuple[str, str]]:
    """CLC diagnosis code to (name, text); empty without the core."""
    return _core.DIAGNOSES if AVAILABLE else {}


def version() -> str:
    """The version of this package."""
    if AVAILABLE:
        return _core.__version__
    from importlib import metadata  # Slow to import, hence here and not above.

    return metadata.version("smcfast")
