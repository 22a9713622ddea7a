"""The programs in examples/ run as they are, and the guide shows each of them whole."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
EXPECTED = {
    "anyio_streams": ["b'HELLO'", "path: smc-d"],
    "in_place": ["True", "path: smc-d"],
    "protocols": ["b'HELLO'", "path: smc-d"],
    "requests_by_http": ["b'HELLO'", "path: smc-d"],
    "sockets": ["b'HELLO\\n'", "path: smc-d"],
    "streams": ["b'HELLO\\n'", "path: smc-d"],
    "tls": ["b'HELLO\\n'", "smc-d TLSv1.3"],
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_it_runs(example: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    if example.stem == "tls" and shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    done = run_python("-W", "error", str(example))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == EXPECTED[example.stem]


def test_the_guide_shows_them_all() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide.md").read_text(), re.DOTALL)
    assert sorted(shown) == sorted(example.read_text() for example in EXAMPLES)
