"""The arrows of the Python package: what its files import. Those of the Rust layers are in tests/arrows.rs."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import smcfast

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(smcfast.__file__).parent
# Stands on the package; nothing of the package stands on it, but for the door to the command line.
UPPER = "smcfast.cli"
DOOR = "smcfast.__main__"
# Stand on the package too, each with the library that it is for and what that brings along; nothing stands on them.
ADAPTERS = "smcfast.contrib"
LIBRARIES = {"smcfast.contrib.anyio": ("anyio",), "smcfast.contrib.dask": ("dask", "distributed")}


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """The absolute names of all modules that a file imports, wherever in it."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            name = ".".join(part for part in (base, node.module) if part)
            yield name
            if name == "smcfast" or name.startswith("smcfast."):  # a name may be a module
                yield from (f"{name}.{alias.name}" for alias in node.names)


def below(name: str, *tops: str) -> bool:
    return any(name == top or name.startswith(f"{top}.") for top in tops)


def faults(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of one file of the package."""
    found = []
    for name in imports(source, module, is_package=is_package):
        if below(name, UPPER) and not below(module, UPPER, DOOR):
            found.append(f"{module} imports {name}, which stands on it")
        if below(name, ADAPTERS) and not below(module, ADAPTERS):
            found.append(f"{module} imports {name}, which stands on it")
        top = name.partition(".")[0]
        if any(below(module, adapter) and top in own for adapter, own in LIBRARIES.items()):
            continue
        if top != "smcfast" and top not in sys.stdlib_module_names:
            found.append(f"{module} imports {name}: only the standard library is there at run time")
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["smcfast", *path.relative_to(PACKAGE).with_suffix("").parts]
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_the_package_imports_only_what_it_may() -> None:
    found = [
        fault
        for module, path in modules()
        for fault in faults(path.read_text(), module, is_package=path.name == "__init__.py")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("smcfast.connect", "import smcfast.cli.demo"),
        ("smcfast.connect", "from smcfast import cli"),
        ("smcfast.connect", "from . import cli"),
        ("smcfast.connect", "from .cli.demo import main"),
        ("smcfast.connect", "def f():\n    import uvloop"),
        ("smcfast.cli.demo", "from rich.table import Table"),
        ("smcfast.connect", "import smcfast.contrib.anyio"),
        ("smcfast.cli.demo", "from smcfast.contrib import dask"),
        ("smcfast.connect", "import anyio"),
        ("smcfast.contrib.port", "import anyio"),
        ("smcfast.contrib.anyio.stream", "import distributed"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert faults(source, module) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("smcfast.connect", "import asyncio, socket\nfrom smcfast._core import Engine\nfrom . import config"),
        ("smcfast.__main__", "from smcfast.cli import main"),
        ("smcfast.cli.demo", "import smcfast\nfrom smcfast.cli import table\nfrom .table import Row"),
        ("smcfast.contrib.anyio.stream", "import anyio.abc\nfrom smcfast.contrib import port\nimport smcfast"),
        ("smcfast.contrib.dask.comm", "from distributed.comm.core import Comm\nimport dask"),
    ],
)
def test_a_right_import_is_left_alone(module: str, source: str) -> None:
    assert faults(source, module) == []
