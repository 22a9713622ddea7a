"""Both ends of the measurements over ucxx, the Python binding of UCX, on asyncio and without a GPU.

Its fastest mode polls in every turn of the event loop, so the suite stops both processes while others are measured.
What it carries are messages into memory of a known size; a first one of 64 bytes says what follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from suite.machine import percentile, pin
from suite.streams import HOST, LONG

if TYPE_CHECKING:
    from support.channel import Channel

    Figures = dict[str, float]

ORDER = 128
"""Bytes of an order and of an answer."""


def _started() -> Any:
    os.environ["UCX_WARN_UNUSED_ENV_VARS"] = "n"
    library = importlib.import_module("ucxx")
    library.init(progress_mode="polling")
    return library


def _packed(value: Any) -> bytearray:
    return bytearray(json.dumps(value).encode().ljust(ORDER))


async def _received(endpoint: Any) -> Any:
    buffer = bytearray(ORDER)
    await endpoint.recv(_array(buffer))
    return json.loads(buffer)


def _array(buffer: bytearray) -> Any:
    return importlib.import_module("numpy").frombuffer(buffer, dtype="u1")


async def serve(parent: Channel, cpu: int | None, folder: str, names: list[str]) -> None:
    """As the server of :mod:`suite.streams`."""
    pin(cpu)
    done = asyncio.Event()

    async def answer(endpoint: Any) -> None:
        while (order := await _received(endpoint))["work"] != "end":
            size, count = order["size"], order["count"]
            buffer = _array(bytearray(size))
            for _ in range(count):
                await endpoint.recv(buffer)
                if order["work"] == "echo":
                    await endpoint.send(buffer)
            await endpoint.send(_array(_packed({"total": size * count})))
        done.set()

    listener = _started().create_listener(answer)
    parent.send(dict.fromkeys(names, listener.port))
    await done.wait()
    await parent.areceive(LONG)
    listener.close()


async def drive(parent: Channel, cpu: int | None) -> None:
    """As the client of :mod:`suite.streams`."""
    pin(cpu)
    endpoint: Any = None
    while order := await parent.areceive(LONG):
        endpoint = endpoint or await _started().create_endpoint(HOST, order["address"])
        size = order.get("size", order.get("chunk"))
        # Both ends must know how many there will be: a few tell how many fill the time.
        trial = await _measure(endpoint, order["work"], size, 5)
        count = max(5, int(order["seconds"] * trial["per_s"]))
        parent.send(await _measure(endpoint, order["work"], size, count))
    if endpoint is not None:
        await endpoint.send(_array(_packed({"work": "end"})))
        await endpoint.close()


async def _measure(endpoint: Any, work: str, size: int, count: int) -> Figures:
    await endpoint.send(_array(_packed({"work": work, "size": size, "count": count})))
    message, buffer = _array(bytearray(size)), _array(bytearray(size))
    now = time.perf_counter_ns
    times: list[int] = []
    begin = now()
    for _ in range(count):
        start = now()
        await endpoint.send(message)
        if work == "echo":
            await endpoint.recv(buffer)
            times.append(now() - start)
    assert (await _received(endpoint))["total"] == size * count
    per_s = count / ((now() - begin) / 1e9)
    if work == "echo":
        return {"p50_us": percentile(times, 50) / 1e3, "p99_us": percentile(times, 99) / 1e3, "per_s": per_s}
    return {"bytes_per_s": per_s * size, "writes_per_s": per_s, "per_s": per_s}


def unavailable() -> str | None:
    """Why ucxx is not measured here, or None."""
    with contextlib.suppress(ImportError):
        importlib.import_module("ucxx")
        return None
    return "ucxx is not installed"
