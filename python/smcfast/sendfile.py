"""``loop.sendfile`` for a transport on rings: there is no socket that the kernel could copy to, so it is read and written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from smcfast.transport import RingTransport

_BLOCK: Final = 256 * 1024


async def sendfile(transport: RingTransport, file: Any, offset: int, count: int | None, fallback: bool) -> int:
    """Send `count` bytes of `file` from `offset` on, or all; how many it were. The file stands behind them then.

    :raises SendfileNotAvailableError: without `fallback` only the kernel may do it.
    :raises RuntimeError: the transport is closing.
    """
    if transport.is_closing():
        raise RuntimeError("Transport is closing")
    if not fallback:
        raise asyncio.SendfileNotAvailableError(f"sendfile syscall is not supported for transport {transport!r}")
    loop = asyncio.get_running_loop()
    if hasattr(file, "seek"):
        file.seek(offset)
    total = 0
    while count is None or total < count:
        data = await loop.run_in_executor(None, file.read, _BLOCK if count is None else min(_BLOCK, count - total))
        if not data:
            break
        transport.write(data)
        total += len(data)
        await transport.drained()
    return total
