"""Both ends of the measurements over iceoryx2, as its examples use it: publish, and an event that wakes the other side.

What it carries are messages; they are copied in and out, as a stream's bytes are.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.machine import percentile, pin
from suite.streams import LEAST, LONG

if TYPE_CHECKING:
    from support.channel import Channel

    Figures = dict[str, float]

END = b"."
"""A message of one byte, which no measurement sends."""
LONGEST = 4 << 20
BUFFERED = 8
"""Messages that wait for the receiver before the sender does."""


class Line:
    """Messages to and from the other process: `to` and `by` name the two directions."""

    def __init__(self, to: str, by: str) -> None:
        self._library: Any = importlib.import_module("iceoryx2")
        self._library.set_log_level(self._library.LogLevel.Error)
        builder = self._library.NodeBuilder.new()
        self._node = builder.create(self._library.ServiceType.Ipc)
        self._wait = self._library.Duration.from_millis(100)
        data, event = self._services(to)
        publisher = data.publisher_builder().initial_max_slice_len(LONGEST)
        self._publisher = publisher.backpressure_strategy(
            self._library.BackpressureStrategy.RetryUntilDelivered
        ).create()
        self._notifier = event.notifier_builder().create()
        data, event = self._services(by)
        self._subscriber = data.subscriber_builder().buffer_size(BUFFERED).create()
        self._listener = event.listener_builder().create()

    def _services(self, name: str) -> tuple[Any, Any]:
        library, node = self._library, self._node
        data = node.service_builder(library.ServiceName.new(name)).publish_subscribe(library.Slice[ctypes.c_uint8])
        data = data.subscriber_max_buffer_size(BUFFERED).enable_safe_overflow(False)
        event = node.service_builder(library.ServiceName.new(f"{name}/event")).event()
        return data.open_or_create(), event.open_or_create()

    def give(self, message: bytes) -> None:
        """Send one message."""
        sample = self._publisher.loan_slice_uninit(len(message))
        ctypes.memmove(sample.payload_ptr, message, len(message))
        sample.assume_init().send()
        self._notifier.notify()

    def take(self) -> bytes:
        """The next message, waiting for it."""
        while (sample := self._subscriber.receive()) is None:
            self._listener.timed_wait(self._wait)
        message = ctypes.string_at(sample.payload_ptr, sample.header.number_of_elements)
        sample.delete()
        return message


def serve(parent: Channel, cpu: int | None, folder: str, names: list[str]) -> None:
    """As the server of :mod:`suite.streams`; orders come as messages, for nothing here waits for both."""
    pin(cpu)
    name = Path(folder).name
    line = Line(f"{name}/back", f"{name}/forth")
    parent.send(dict.fromkeys(names, name))
    while order := json.loads(line.take()):
        if order["work"] == "echo":
            while (message := line.take()) != END:
                line.give(message)
        else:
            total = 0
            while (message := line.take()) != END:
                total += len(message)
            line.give(json.dumps(total).encode())
    parent.receive(LONG)


def drive(parent: Channel, cpu: int | None) -> None:
    """As the client of :mod:`suite.streams`."""
    pin(cpu)
    line: Line | None = None
    while order := parent.receive(LONG):
        name = order.pop("address")
        line = line or Line(f"{name}/forth", f"{name}/back")
        line.give(json.dumps(order).encode())
        work, size = order["work"], order.get("size", order.get("chunk"))
        if work == "echo":
            parent.send(_echo(line, size, order["seconds"]))
        else:
            parent.send(_stream(line, size, order["seconds"]))
    if line is not None:
        line.give(b"null")


def _echo(line: Line, size: int, seconds: float) -> Figures:
    message, now = bytes(size), time.perf_counter_ns
    times: list[int] = []
    counted_from = now() + int(seconds * 1e8)
    end = counted_from + int(seconds * 9e8)
    start = now()
    while start < end or len(times) < LEAST:
        line.give(message)
        line.take()
        stop = now()
        if start >= counted_from:
            times.append(stop - start)
        start = now()
    line.give(END)
    return {"p50_us": percentile(times, 50) / 1e3, "p99_us": percentile(times, 99) / 1e3, "messages": len(times)}


def _stream(line: Line, chunk: int, seconds: float) -> Figures:
    data, sent, now = bytes(chunk), 0, time.perf_counter
    start = now()
    while now() < start + seconds:
        line.give(data)
        sent += 1
    line.give(END)
    assert json.loads(line.take()) == sent * chunk, "bytes were lost"
    elapsed = now() - start
    return {"bytes_per_s": sent * chunk / elapsed, "writes_per_s": sent / elapsed}


def unavailable() -> str | None:
    """Why iceoryx2 is not measured here, or None."""
    with contextlib.suppress(ImportError):
        importlib.import_module("iceoryx2")
        return None
    return "iceoryx2 is not installed"
