"""Python imports this at its start in a program that `smcfast run` has begun: this folder stands first on its path.

Nothing of smcfast is loaded before the program has imported asyncio, and nothing at all where it never does.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

VARIABLE = "SMCFAST_RUN"
"""What `smcfast run` was told, as JSON."""


class _Watch(importlib.abc.MetaPathFinder):
    """Has `smcfast.wrapping` look at each of these modules when it was loaded."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._names = {"asyncio", "uvloop"}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with one step more at the end of its loading."""
        if fullname not in self._names:
            return None
        self._names.discard(fullname)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            own = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                own(module)
                self.wrap(module)

            loader.exec_module = exec_module
        return spec

    def wrap(self, module: ModuleType) -> None:
        """Put smcfast into a module that is loaded."""
        # An interpreter that has no smcfast may have been started by one that has.
        with contextlib.suppress(ImportError):
            from smcfast import wrapping

            wrapping.wrap(module, self._options)


def _begin() -> None:
    options = json.loads(os.environ[VARIABLE])
    if not options["children"]:
        del os.environ[VARIABLE]
        _forget_folder()
    watch = _Watch(options)
    sys.meta_path.insert(0, watch)
    for name in ("asyncio", "uvloop"):  # A .pth file may have been quicker.
        if name in sys.modules:
            watch.wrap(sys.modules[name])


def _forget_folder() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != here]
    os.environ.pop("PYTHONPATH", None)
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)


def _give_way() -> None:
    """Load the sitecustomize that is there without us, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if VARIABLE in os.environ:
    _begin()
_give_way()
