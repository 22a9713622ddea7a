"""CPython's own test cases for asyncio, run with our functions in the place of the event loop's."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
import unittest
from typing import TYPE_CHECKING, Any

import smcfast
from smcfast.held import HeldSocket
from smcfast.server import NeverMade

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACES = {
    "test_streams": ("StreamTests", "NewStreamTests"),
    "test_server": ("SelectorStartServerTests", "TestServer2"),
    "test_buffered_proto": ("BufferedProtocolSelectorTests",),
    "test_ssl": ("TestSSL",),
    "test_events": ("SelectEventLoopTests",),
}
"""The modules of test.test_asyncio with cases of connections, and their classes for an event loop with a selector, of all versions."""
_CALLS = re.compile(r"\b(open_connection|start_server|create_connection|create_server|start_tls)\(")


class SmcEventLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, whose connections and servers are smcfast's."""

    config: smcfast.SmcConfig | None = None
    calls = 0
    """Connections and servers that were asked for."""

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        if isinstance(options.get("sock"), HeldSocket):  # smcfast's own call
            return await super().create_connection(*args, **options)
        SmcEventLoop.calls += 1
        return await smcfast.create_smc_connection(*args, config=self.config, **options)

    async def create_server(self, *args: Any, **options: Any) -> Any:
        if args[0] is NeverMade:  # smcfast's own, to have its sockets bound
            return await super().create_server(*args, **options)
        SmcEventLoop.calls += 1
        return await smcfast.create_smc_server(*args, config=self.config, **options)


def cases() -> Iterator[tuple[str, type[unittest.TestCase], str]]:
    """Name, class and method of each case that opens a stream connection or a server itself."""
    for module_name, class_names in PLACES.items():
        module = importlib.import_module(f"test.test_asyncio.{module_name}")
        for class_name in class_names:
            kind: type[unittest.TestCase] = getattr(module, class_name, unittest.TestCase)
            for method in unittest.TestLoader().getTestCaseNames(kind):
                if _applies(kind, method):
                    yield f"{module_name}.{method}", kind, method


def _applies(kind: type, name: str, depth: int = 2) -> bool:
    """Does the method, or one that it calls, open a connection? Unix sockets, pipes and readers that are fed do not count."""
    if "unix" in name:
        return False
    try:
        source = inspect.getsource(getattr(kind, name))
    except (AttributeError, OSError, TypeError):
        return False
    if _CALLS.search(source):
        return True
    helpers = set(re.findall(r"self\.(\w+)\(", source)) - {name}
    return depth > 0 and any(_applies(kind, each, depth - 1) for each in helpers if each.startswith("_"))
