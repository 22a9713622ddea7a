"""One port for all sockets of a server."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from smcfast import SmcServer

_TRIES: Final = 10


async def shared(bind: Callable[[int], Awaitable[SmcServer]], port: int) -> SmcServer:
    """The server that ``bind(port)`` makes, which is bound and does not serve yet: all its sockets have the same port.

    For port 0 asyncio gives each address of a name, or each family of "", a port of its own; who publishes one address
    of the server needs the one port that they have in common.

    :raises OSError: as `bind`; for port 0 when there is none that is free on all addresses.
    """
    for tries_left in reversed(range(_TRIES)):
        server = await bind(port)
        ports = {sock.getsockname()[1] for sock in server.sockets}
        if len(ports) == 1:
            return server
        server.close()
        try:
            return await bind(min(ports))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not tries_left:
                raise
    raise AssertionError("the last try returns or raises")
