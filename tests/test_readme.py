"""The README's example does what the README says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.addresses import refusing

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.smoke
def test_the_example_runs(run_python: Run) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert "8000" in example
    with refusing("127.0.0.1") as port:
        pass  # free a moment ago: the number in the text may be taken here
    done = run_python("-W", "error", "-c", example.replace("8000", str(port)))
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert said[0] == "b'HELLO\\n'"
    assert "smc-d" in said[1]
