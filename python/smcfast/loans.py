"""Bytes in their place: a view of received ones, a reservation of room for those to be sent. Here: what both promise, and how
it is kept by copies where there is no ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from smcfast import _core


class Buffer(Protocol):
    """What exports its bytes by the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """The bytes."""


class View(Protocol):
    """Received bytes in one piece, for `memoryview`, `numpy.frombuffer` and whatever else takes a buffer; do not write them.

    Nothing else can be read while it is open. Leaving a `with` block closes it; so does dropping it. On a ring the peer can
    still change the bytes if it breaks the rules: copy what must not change between a check and its use.
    """

    def __len__(self) -> int:
        """Bytes."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """The buffer protocol."""

    @property
    def closed(self) -> bool:
        """Was it consumed or closed?"""

    def consume(self, n: int | None = None) -> None:
        """Take the first `n` bytes, all without `n`, out of the stream, and close the view.

        :raises BufferError: a memoryview or an array of it is still in use, and would see its bytes change.
        :raises ValueError: it is closed, the connection was closed, or it does not have so many.
        """

    def close(self) -> None:
        """Leave all bytes unread.

        :raises BufferError: a memoryview or an array of it is still in use.
        """

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it, as soon as no buffer of it is in use if an exception comes along."""


class Reservation(Protocol):
    """Room for bytes to be sent, in one piece, writable by the buffer protocol. What is in it at first means nothing.

    Nothing else can be written while it is open. Leaving a `with` block closes it, and so does dropping it: what was not
    committed is not sent.
    """

    def __len__(self) -> int:
        """Bytes."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """The buffer protocol."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set a byte, or a slice from as many bytes."""

    @property
    def closed(self) -> bool:
        """Was it committed or closed?"""

    def commit(self, n: int | None = None) -> None:
        """Send the first `n` bytes, all without `n`, and close the reservation.

        :raises BufferError: a memoryview or an array of it is still in use, and could change what is under way.
        :raises ValueError: it is closed, or does not have so many.
        :raises ConnectionError: the connection cannot carry them.
        """

    def close(self) -> None:
        """Send nothing.

        :raises BufferError: a memoryview or an array of it is still in use.
        """

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it, as soon as no buffer of it is in use if an exception comes along."""


class _Copied(bytearray):
    """Bytes of its own. That a bytearray cannot be emptied while a buffer of it is in use is what the ring's say as well."""

    def __init__(self, data: Buffer | int) -> None:
        super().__init__(data)
        self.closed: bool = False
        self._size = super().__len__()

    def __len__(self) -> int:
        return self._size  # also when it is closed, and empty

    def __repr__(self) -> str:
        """Its size and state; not its bytes, of which there may be millions."""
        return f"<{type(self).__name__} {'closed ' if self.closed else ''}{self._size} bytes>"

    def _count(self, n: int | None, name: str) -> int:
        """`n`, or all; checked."""
        if self.closed:
            raise ValueError(f"the {name} is closed")
        if n is not None and not 0 <= n <= len(self):
            raise ValueError(f"{n} bytes of a {name} of {len(self)}")
        return len(self) if n is None else n

    def close(self) -> None:
        self.clear()  # BufferError while a buffer of it is in use
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BufferError:
            if kind is None:
                raise


class CopiedView(_Copied):
    """A View of a copy."""

    def __init__(self, data: Buffer, consume: Callable[[int], None]) -> None:
        """Show `data`, and have `consume(n)` called when so many bytes were used."""
        super().__init__(data)
        self._consume = consume

    def consume(self, n: int | None = None) -> None:
        n = self._count(n, "view")
        self.close()
        self._consume(n)


class CopiedReservation(_Copied):
    """A Reservation of memory of its own, which is written by an ordinary write when it is committed."""

    def __init__(self, n: int, write: Callable[[bytes], None], held: _core.Reservation | None = None) -> None:
        """Reserve `n` bytes, for `write(data)`; `held` is closed before, and keeps others from writing until then."""
        super().__init__(n)
        self._write = write
        self._held = held

    def __setitem__(self, key: Any, value: Any) -> None:
        with memoryview(self) as room:
            room[key] = value

    def commit(self, n: int | None = None) -> None:
        n = self._count(n, "reservation")
        with memoryview(self) as room, room[:n] as part:
            data = bytes(part)
        self.close()
        self._write(data)

    def close(self) -> None:
        super().close()
        if self._held is not None:
            self._held.close()
