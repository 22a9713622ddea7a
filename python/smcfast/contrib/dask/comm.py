"""`SmcComm`: messages of distributed over one connection."""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn

from distributed.comm.addressing import unparse_host_port
from distributed.comm.core import Comm, CommClosedError
from distributed.comm.utils import from_frames, to_frames

from smcfast.contrib.dask import frames, keepalive, pipe

if TYPE_CHECKING:
    from smcfast.contrib.dask.pipe import Pipe

PREFIX: Final = "smc://"

logger: logging.Logger = logging.getLogger(__name__)


class SmcComm(Comm):
    """A comm over any path; ``extra_info["smc"]`` is its `SmcInfo`."""

    def __init__(self, pipe_: Pipe, peer_address: str, deserialize: bool = True) -> None:
        """:param peer_address: what the peer was called, or where it has connected from."""
        super().__init__(deserialize=deserialize)
        self._pipe = pipe_
        self._writing = asyncio.Lock()
        # distributed reads these two by their names.
        self._local_addr = PREFIX + str(unparse_host_port(*pipe_.own))
        self._peer_addr = peer_address
        keepalive.watch(pipe_)
        self._finalizer = weakref.finalize(self, _abandoned, pipe_, repr(self))
        self._finalizer.atexit = False

    async def read(self, deserializers: Any = None) -> Any:
        """The next message. A read that is cancelled closes the comm, as nobody knows how far it came.

        :raises CommClosedError: the comm is closed, or closes; or what the peer sends is no message.
        """
        try:
            received = await frames.read(self._pipe)
        except OSError as error:
            self._fail(error)
        except BaseException:
            self.abort()
            raise
        try:
            return await from_frames(
                received, deserialize=self.deserialize, deserializers=deserializers, allow_offload=self.allow_offload
            )
        except EOFError as error:
            self._fail(error)

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """Write `msg`; how many bytes that was. Its buffers may be changed when this returns.

        :raises CommClosedError: the comm is closed, or the peer is gone.
        """
        if self.closed():
            raise CommClosedError(f"in {self}: closed")
        made = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options},
            # A frame that is cut has to be put together again, by a copy.
            frame_split_size=sys.maxsize,
        )
        try:
            async with self._writing:
                return await frames.write(self._pipe, made)
        except OSError as error:
            self._fail(error)
        except BaseException:
            self.abort()  # the rest of this message will never come
            raise

    async def close(self) -> None:
        """Close behind what was written."""
        self._finalizer.detach()
        await self._pipe.close()

    def abort(self) -> None:
        """Close at once."""
        self._finalizer.detach()
        self._pipe.abort()

    def closed(self) -> bool:
        """Is the comm closed, by either end?"""
        return self._pipe.is_over

    @property
    def local_address(self) -> str:
        """The own address."""
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """The peer's address."""
        return self._peer_addr

    @property
    def extra_info(self) -> dict[str, Any]:
        """The path, and why it is "tcp" if it is, under "smc"."""
        return {"smc": self._pipe.info}

    def _fail(self, error: Exception) -> NoReturn:
        self.abort()
        raise CommClosedError(f"in {self}: {type(error).__name__}: {error}") from error


def _abandoned(abandoned: Pipe, name: str) -> None:
    if not abandoned.lost.done():
        logger.warning("Closing dangling connection of %s", name)
        pipe.drop(abandoned)
