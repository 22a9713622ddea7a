"""A peer whose host is gone without a word: on path "tcp" the kernel finds out, in the time that Dask's configuration gives.

In shared memory there is no such peer, and a link of SMC-R is tested by itself.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Final

import dask
from dask.utils import parse_timedelta

if TYPE_CHECKING:
    from smcfast.contrib.dask.pipe import Pipe

_PROBES: Final = 10


def watch(pipe: Pipe) -> None:
    """Let the connection be lost when its peer has not answered for ``distributed.comm.timeouts.tcp``."""
    if pipe.info is None or pipe.info.path != "tcp":
        return
    seconds = int(parse_timedelta(dask.config.get("distributed.comm.timeouts.tcp"), default="seconds"))
    interval = max(1, seconds // (_PROBES + 4))
    options = {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): _PROBES,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): interval,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): max(1, seconds - _PROBES * interval),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): 1000 * seconds,
    }
    with contextlib.suppress(OSError):  # the connection is lost already
        for (level, name), value in options.items():
            pipe.transport.get_extra_info("socket").setsockopt(level, name, value)
