"""One setting: its default, its variable, its range, and the words for what is out of it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final, cast

from smcfast.errors import SmcConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PREFIX: Final = "SMCFAST_"

_SIZE = re.compile(r"([0-9]+)([KMG]?)", re.IGNORECASE)
_DEVICE = re.compile(r"[A-Za-z0-9][\w.\-]{0,62}(:[1-9][0-9]{0,2})?", re.ASCII)
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}


class Setting:
    """The default of a dataclass field: the field's variable, else `default`.

    `take` and `from_variable` give a value as the object keeps it, or an error that says what is wanted.
    """

    def __init__(
        self,
        default: Any,
        wanted: str,
        check: Callable[[Any], Any],
        read: Callable[[str], Any] = str.strip,
        spelling: str = "",
    ) -> None:
        """
        :param wanted: what a value must be, with range and unit.
        :param check: from a value to the one that is kept; ValueError, with details if there are any, refuses it.
        :param read: from the text of a variable to a value; ValueError refuses it.
        :param spelling: how a variable is written, where that is not obvious.
        """
        self.default = default
        self.wanted = wanted
        self.name: str = ""
        self._check = check
        self._read = read
        self._spelling = spelling and f"; {spelling}"

    def __set_name__(self, _owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.variable}, else {self.default!r}>"

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return PREFIX + self.name.upper()

    def take(self, value: Any) -> Any:
        """A value that the caller has given.

        :raises SmcConfigError: it is not what is wanted.
        """
        try:
            return self._check(value)
        except ValueError as error:
            raise SmcConfigError(_message(f"{self.name}={value!r}", self.wanted, error)) from None

    def from_variable(self) -> Any:
        """The value of the variable, the default when there is none; an empty one is an empty list or none at all.

        :raises SmcConfigError: it is not what is wanted.
        """
        text = os.environ.get(self.variable)
        if text is None or (not text.strip() and not isinstance(self.default, tuple)):
            return self.default
        try:
            return self._check(self._read(text))
        except ValueError as error:
            name = f"environment variable {self.variable}={text!r}"
            raise SmcConfigError(_message(name, self.wanted + self._spelling, error)) from None


def _message(name: str, wanted: str, error: ValueError) -> str:
    details = f"; {error}" if isinstance(error, Refused) and error.args else ""
    return f"{name}: must be {wanted}{details}"


class Refused(ValueError):
    """A value is not what is wanted; the text, if there is one, says what is wrong with it."""


def parse_size(text: str) -> int:
    """Bytes from digits that K, M or G (powers of 1024) may follow.

    :raises Refused: it is written otherwise.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise Refused
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]


def choice(default: str, *allowed: str) -> Any:
    """One of some words."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise Refused
        return value

    return Setting(default, f"one of {', '.join(allowed)}", check)


def switch(default: bool) -> Any:
    """True or False."""

    def check(value: Any) -> bool:
        if not isinstance(value, int) or value not in (0, 1):
            raise Refused
        return bool(value)

    def read(text: str) -> Any:
        return _SWITCHES.get(text.strip().lower())

    return Setting(default, "True or False, or 1 or 0", check, read)


def integer(default: int, low: int, high: int, unit: str) -> Any:
    """An int within bounds."""
    return Setting(default, f"an int, {low}..{high} {unit}", lambda value: _integer(value, low, high), int)


def integer_or_none(low: int, high: int, unit: str) -> Any:
    """An int within bounds, or None, which is the default."""

    def check(value: Any) -> int | None:
        return None if value is None else _integer(value, low, high)

    return Setting(None, f"None or an int, {low}..{high} {unit}", check, int)


def size(default: int, low: int, high: int) -> Any:
    """A power of two within bounds, in bytes."""

    def check(value: Any) -> int:
        if _integer(value, low, high) & (value - 1):
            raise Refused
        return int(value)

    wanted = f"an int, a power of two, {low}..{high} bytes"
    return Setting(default, wanted, check, parse_size, "K, M or G may follow")


def seconds(default: float, low: float, high: float) -> Any:
    """A time within bounds."""

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise Refused
        return value

    return Setting(default, f"a number, {low}..{high} seconds", check, float)


def seconds_or_off(default: float, low: float, high: float) -> Any:
    """A time within bounds, or 0."""

    def check(value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (value == 0 or low <= value <= high):
            raise Refused
        return value  # type: ignore[no-any-return]

    return Setting(default, f"0 for none, or a number, {low}..{high} seconds", check, float)


def several(
    default: Sequence[Any], wanted: str, check: Callable[[tuple[Any, ...]], None], read: Callable[[str], Any] = str
) -> Any:
    """A list, kept as a tuple.

    :param check: ValueError refuses the members.
    :param read: from the text of one member to its value.
    """

    def check_all(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            raise Refused(f"write a tuple: {read_all(value)!r}")
        if isinstance(value, bytes) or not hasattr(value, "__iter__"):
            raise Refused
        members = tuple(value)
        check(members)
        return members

    def read_all(text: str) -> tuple[Any, ...]:
        return tuple(read(word.strip()) for word in text.split(",") if word.strip())

    return Setting(tuple(default), f"a sequence of {wanted}", check_all, read_all, "with commas between them")


def words(default: Sequence[str], *allowed: str, absent: Sequence[str] = (), empty: str) -> Any:
    """Some of the words that are allowed, each at most once; this version does not have the `absent` ones.

    :param empty: what it means to name none.
    """

    def check(members: tuple[Any, ...]) -> None:
        if any(member not in allowed for member in members) or len(set(members)) != len(members):
            raise Refused

    wanted = f"{', '.join(allowed)}, each at most once, or empty for {empty}"
    wanted += f" (not in this version: {', '.join(absent)})" if absent else ""
    return several(default, wanted, check)


def integers(low: int, high: int, unit: str) -> Any:
    """A list of ints within bounds, empty by default."""

    def check(members: tuple[Any, ...]) -> None:
        for member in members:
            _integer(member, low, high)

    return several((), f"ints, each {low}..{high} ({unit})", check, int)


def directory() -> Any:
    """An absolute path, or None; whether it leads to a directory is not looked at here."""

    def check(value: Any) -> str | None:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if value is not None and not (isinstance(value, str) and os.path.isabs(value) and "\0" not in value):
            raise Refused
        return value

    return Setting(None, "None or the absolute path of a directory", check)


def rdma_device() -> Any:
    """The name of an RDMA device, which the number of a port may follow, or None. A pyverbs Context is as good as its name."""

    def check(value: Any) -> str | None:
        if value is not None and not isinstance(value, str):
            value = _name_of_context(value)
        if value is not None and not _DEVICE.fullmatch(value):
            raise Refused
        return cast("str | None", value)

    return Setting(
        None, "None or the name of an RDMA device, as rxe0 or mlx5_0:1 (its port), or an open pyverbs Context", check
    )


def _name_of_context(value: Any) -> str:
    """The device of a pyverbs Context, whose library smcfast never imports."""
    if not any(kind.__module__ == "pyverbs.device" and kind.__name__ == "Context" for kind in type(value).__mro__):
        raise Refused
    name = value.name
    return name.decode() if isinstance(name, bytes) else str(name)


def _integer(value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Refused
    return value
