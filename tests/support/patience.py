"""How much longer than on an ordinary machine everything may take, for the machine that is emulated."""

from __future__ import annotations

import os

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
"""The factor of every guard against hanging; no test waits for one to expire."""
