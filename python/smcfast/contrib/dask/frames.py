"""A message on its way: the number of its frames, their lengths, the frames.

Numbers are u64, little-endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from distributed.protocol.utils import host_array
from distributed.system import MEMORY_LIMIT
from distributed.utils import ensure_memoryview

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smcfast.contrib.dask.pipe import Pipe

FRAMES_MAX: Final = 2**22
"""Frames of a message; its lengths are 32 MiB then."""
JOIN_MAX: Final = 64 * 1024
"""Frames up to this many bytes are put together with those beside them before they are written."""
_NUMBER: Final = 8


class BadLengthsError(ConnectionError):
    """The peer announces what no message has."""


def bytes_max() -> int:
    """Bytes of a message: all memory that there is for this process, as distributed finds it."""
    return int(MEMORY_LIMIT)


async def read(pipe: Pipe) -> list[memoryview]:
    """The frames of the next message, each in memory of its own, which can be written to.

    :raises BadLengthsError: the peer announces more frames, or more bytes, than a message may have.
    :raises ConnectionError: the connection ends.
    """
    (count,) = await _numbers(pipe, 1)
    if count > FRAMES_MAX:
        raise BadLengthsError(f"a message of {count} frames; there may be {FRAMES_MAX}")
    lengths = await _numbers(pipe, count)
    if sum(lengths) > bytes_max():
        raise BadLengthsError(f"a message of {sum(lengths)} bytes; there may be {bytes_max()}")
    frames = []
    for length in lengths:
        frame = host_array(length)
        await pipe.read_into(frame)
        frames.append(frame)
    return frames


async def write(pipe: Pipe, frames: Iterable[Any]) -> int:
    """Write a message; how many bytes that is.

    :raises ConnectionError: the connection is lost or closed.
    """
    views = [ensure_memoryview(frame) for frame in frames]
    lengths = [view.nbytes for view in views]
    head = struct.pack(f"<{1 + len(lengths)}Q", len(lengths), *lengths)
    await pipe.write(_joined([memoryview(head), *views]))
    return len(head) + sum(lengths)


async def _numbers(pipe: Pipe, count: int) -> tuple[int, ...]:
    data = bytearray(_NUMBER * count)
    await pipe.read_into(memoryview(data))
    return struct.unpack(f"<{count}Q", data)


def _joined(views: Iterable[memoryview]) -> Iterable[memoryview]:
    """The same bytes, with small neighbours in one piece."""
    small: list[memoryview] = []
    size = 0
    for view in views:
        if view.nbytes > JOIN_MAX:
            if small:
                yield memoryview(b"".join(small))
                small, size = [], 0
            yield view
            continue
        if size + view.nbytes > JOIN_MAX:
            yield memoryview(b"".join(small))
            small, size = [], 0
        small.append(view)
        size += view.nbytes
    if small:
        yield memoryview(b"".join(small))
