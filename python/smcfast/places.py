"""How many handshakes a server may have under way."""

from __future__ import annotations


class Places:
    """The handshakes that one server may have under way at once."""

    def __init__(self, count: int) -> None:
        self._free = count

    @property
    def full(self) -> bool:
        """Is there no place for one more?"""
        return self._free == 0

    def place(self) -> Place:
        """A place for one connection, which is not taken yet."""
        return Place(self)


class Place:
    """One connection's place among the handshakes; its owner leaves it when the connection has found its path."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._taken = False

    def take(self) -> bool:
        """Begin a handshake, unless there are too many; True also when this one has begun before."""
        if not self._taken and not self._places.full:
            self._places._free -= 1
            self._taken = True
        return self._taken

    def leave(self) -> None:
        """Let another one have the place, if it was taken."""
        if self._taken:
            self._places._free += 1
            self._taken = False
