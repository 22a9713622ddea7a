"""The installed package as others meet it: what it brings along, what it does when it is imported."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import smcfast

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.smoke

# The C library and its parts.
LIBC = ("libc.so", "ld-linux-", "libpthread.so", "libdl.so", "libm.so", "librt.so")


def native_module() -> Path:
    (module,) = Path(smcfast.__file__).parent.glob("_core*.so")
    return module


def test_version_is_the_distributions() -> None:
    assert smcfast.__version__ == importlib.metadata.version("smcfast")


def test_every_public_name_is_there() -> None:
    assert [name for name in smcfast.__all__ if not hasattr(smcfast, name)] == []


def test_nothing_is_required_at_run_time() -> None:
    required = importlib.metadata.requires("smcfast") or []
    assert [one for one in required if "extra ==" not in one] == []


def test_nothing_but_libc_is_linked() -> None:
    dynamic = subprocess.run(["readelf", "-dW", native_module()], capture_output=True, text=True, check=True).stdout
    needed = [line.rpartition("[")[2].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    assert needed
    assert [library for library in needed if not library.startswith(LIBC)] == []


def test_it_is_typed_and_for_every_interpreter_from_3_11() -> None:
    assert (Path(smcfast.__file__).parent / "py.typed").is_file()
    assert native_module().name == "_core.abi3.so"


def test_import_prints_nothing_and_maps_no_rdma_library(run_python: Run) -> None:
    code = "import pathlib, re, smcfast; assert not re.search('ibverbs|rdmacm', pathlib.Path('/proc/self/maps').read_text())"
    done = run_python("-W", "error", "-X", "dev", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_import_starts_no_thread_and_opens_no_file(run_python: Run) -> None:
    code = """
import os
def look():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
before = look()
import smcfast
assert look() == before, (before, look())
"""
    done = run_python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
