"""The tests of tests/verbs_rxe.rs, which are Rust's and need two devices: each of them is one here."""

from __future__ import annotations

import os
import subprocess
from typing import Final

import pytest

from vm.support.hosts import A, B

BINARY: Final = os.environ.get("TEST_VERBS", "")
"""The file that was built of them; .ci/dev/machine.py does, and says where it is."""
LIMIT: Final = 120.0


def names() -> list[str]:
    if not BINARY:
        return []
    listed = subprocess.run(
        [BINARY, "--list", "--format=terse"], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    return [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]


@pytest.fixture
def loop_kind() -> str:
    """No loop is needed."""
    return "asyncio"


@pytest.mark.parametrize("name", names())
def test_pairs(name: str) -> None:
    settings = {
        "SMCFAST_RDMA": "1",
        "SMCFAST_RDMA_DEVICES": f"{A.device} {B.device}",
        "SMCFAST_RDMA_NETDEVS": f"{A.interface} {B.interface}",
    }
    done = subprocess.run(
        [BINARY, "--exact", name, "--nocapture"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        env={**os.environ, **settings},
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "1 passed" in done.stdout, done.stdout
    assert "not run: " not in done.stderr, done.stderr
