"""`SmcConfig`: every knob, its range and its unit.

A field is taken from the call that builds the object, else from its variable ``SMCFAST_<FIELD>``, else it is the
default. Lists in variables are separated by commas, sizes may end in K, M or G (powers of 1024), switches are 0 or 1.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from smcfast import patterns
from smcfast.errors import SmcConfigError
from smcfast.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FallbackPolicy: TypeAlias = Literal["allow", "warn", "forbid"]

PREFIX = "SMCFAST_"
FALLBACKS = ("allow", "warn", "forbid")
PATHS = ("smc-d", "smc-r", "kernel")
DISCOVERIES = ("rendezvous", "option")
RMB_SIZE_MIN = 16 << 10
RMB_SIZE_MAX = 512 << 20
UEIDS_MAX = 8
NOT_FIELDS = frozenset({"LOG"})
"""Variables that are read elsewhere."""

_UEID = re.compile(r"[A-Z0-9][A-Z0-9.\-]{0,31}")
_SIZE = re.compile(r"([0-9]+)([KMG]?)", re.IGNORECASE)
_warned: set[str] = set()


def _text(text: str) -> str:
    return text.strip()


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in _words(text))


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a size in bytes (digits, then K, M or G if need be)")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]


def _switch(text: str) -> bool:
    if text.strip() not in ("0", "1"):
        raise ValueError("not a switch (0 or 1)")
    return text.strip() == "1"


def _setting(name: str, read: Callable[[str], Any], default: Any) -> Any:
    """A dataclass field whose default is the variable ``SMCFAST_<name>``, else `default`."""

    def value() -> Any:
        text = os.environ.get(PREFIX + name)
        if text is None:
            return default
        try:
            return read(text)
        except ValueError as error:
            raise SmcConfigError(f"{PREFIX}{name}={text!r}: {error}") from None

    return field(default_factory=value)


@dataclass(frozen=True)
class SmcConfig:
    """How connections and servers look for a faster path than TCP; immutable, and checked when built.

    :raises SmcConfigError: a value is out of its range; the message has the field, the range and the unit.
    """

    fallback: FallbackPolicy = _setting("FALLBACK", _text, "allow")  # noqa: RUF009 - a field, see there
    """What TCP means: "allow" logs it at INFO, "warn" at WARNING, "forbid" raises `SmcFallbackError`."""
    paths: tuple[str, ...] = _setting("PATHS", _words, ("smc-d", "smc-r"))
    """Paths that may be taken. This version has "smc-d"; the others are accepted and never chosen."""
    discovery: tuple[str, ...] = _setting("DISCOVERY", _words, ("rendezvous", "option"))
    """How to find out whether the peer speaks SMC. This version has "rendezvous"."""
    assume: tuple[str, ...] = _setting("ASSUME", _words, ())
    """Destinations and own listeners that are known to speak SMC (``host:port``, see `smcfast.patterns`). The only
    setting that can put handshake bytes into the stream of a plain TCP peer."""
    rmb_size: int = _setting("RMB_SIZE", _size, 1 << 20)
    """Bytes of each connection's receive buffer: a power of two, 16384..536870912."""
    spin_us: int = _setting("SPIN_US", int, 50)
    """Microseconds for which a waiter looks for the peer's bytes before it sleeps, 0..10000: the first 5 in place, the
    rest between turns of the loop; 0 sleeps at once."""
    preallocate: bool = _setting("PREALLOCATE", _switch, False)
    """Take a buffer's memory at set-up instead of at first use."""
    rendezvous_dir: str | None = _setting("RENDEZVOUS_DIR", _text, None)
    """A directory shared between containers. Not in this version: must be None."""
    allow_uids: tuple[int, ...] = _setting("ALLOW_UIDS", _numbers, ())
    """User ids, besides the own one, whose processes may share memory with this one, 0..4294967294."""
    handshake_timeout: float = _setting("HANDSHAKE_TIMEOUT", float, 6.0)
    """Seconds for discovery and handshake together, 0.1..3600."""
    max_pending_handshakes: int = _setting("MAX_PENDING_HANDSHAKES", int, 1024)
    """Handshakes a server has under way at once, 1..65536; connections beyond are TCP."""
    ueids: tuple[str, ...] = _setting("UEIDS", _words, ())
    """User-defined enterprise ids for smc-r, at most 8; 1..32 of A-Z 0-9 . - each. One host has an id of its own."""
    device: str | None = _setting("DEVICE", _text, None)
    """The RDMA device for smc-r. Not in this version: must be None."""

    def __post_init__(self) -> None:
        for name in ("paths", "discovery", "assume", "allow_uids", "ueids"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        _one_of("fallback", self.fallback, FALLBACKS)
        _each_of("paths", self.paths, PATHS)
        _each_of("discovery", self.discovery, DISCOVERIES)
        _in_range("spin_us", self.spin_us, 0, 10_000, "microseconds")
        _in_range("handshake_timeout", self.handshake_timeout, 0.1, 3600, "seconds", kind=(int, float))
        _in_range("max_pending_handshakes", self.max_pending_handshakes, 1, 65536, "handshakes")
        _in_range("rmb_size", self.rmb_size, RMB_SIZE_MIN, RMB_SIZE_MAX, "bytes")
        for uid in self.allow_uids:
            _in_range("allow_uids", uid, 0, 2**32 - 2, "user ids")
        if self.rmb_size & (self.rmb_size - 1):
            _refuse("rmb_size", self.rmb_size, f"a power of two, {RMB_SIZE_MIN}..{RMB_SIZE_MAX} bytes")
        _one_of("preallocate", self.preallocate, (False, True))
        for name in ("rendezvous_dir", "device"):
            if getattr(self, name) is not None:
                _refuse(name, getattr(self, name), "None: this version cannot use it")
        _check_ueids(self.ueids)
        object.__setattr__(self, "_assumed", _parse_assume(self.assume))
        _warn_of_strangers()

    def assumes(self, host: str | None, address: str, port: int) -> bool:
        """Is the end at `address` and `port`, which the caller named `host`, known to speak SMC?"""
        assumed: tuple[patterns.Pattern, ...] = self._assumed  # type: ignore[attr-defined]
        return bool(assumed) and patterns.any_matches(assumed, host, address, port)


def _refuse(name: str, value: object, wanted: str) -> None:
    raise SmcConfigError(f"{name}={value!r}: must be {wanted} (field {name} or {PREFIX}{name.upper()})")


def _as_tuple(name: str, value: object) -> tuple[Any, ...]:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        _refuse(name, value, "a sequence")
    return tuple(cast("Iterable[Any]", value))


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed or type(value) is not type(allowed[0]):
        _refuse(name, value, f"one of {', '.join(map(str, allowed))}")


def _each_of(name: str, values: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    if any(value not in allowed for value in values) or len(set(values)) != len(values):
        _refuse(name, values, f"some of {', '.join(allowed)}, each at most once")


def _in_range(
    name: str, value: object, low: float, high: float, unit: str, kind: type | tuple[type, ...] = int
) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= cast("float", value) <= high:
        _refuse(name, value, f"{low}..{high} {unit}")


def _check_ueids(ueids: tuple[Any, ...]) -> None:
    if len(ueids) > UEIDS_MAX:
        _refuse("ueids", ueids, f"at most {UEIDS_MAX} ids")
    for ueid in ueids:
        if not isinstance(ueid, str) or not _UEID.fullmatch(ueid):
            _refuse("ueids", ueids, "ids of 1..32 characters A-Z 0-9 . - that begin with a letter or a digit")


def _parse_assume(texts: tuple[str, ...]) -> tuple[patterns.Pattern, ...]:
    parsed = []
    for text in texts:
        try:
            parsed.append(patterns.parse(text))
        except (ValueError, AttributeError) as error:
            raise SmcConfigError(f"assume={texts!r}: {error} (field assume or {PREFIX}ASSUME)") from None
    return tuple(parsed)


def _warn_of_strangers() -> None:
    """Say once in this process which SMCFAST_* variables nobody reads: most are misspelt."""
    known = NOT_FIELDS.union(f.name.upper() for f in fields(SmcConfig))
    for name in os.environ:
        if name.startswith(PREFIX) and name not in _warned and name.removeprefix(PREFIX) not in known:
            _warned.add(name)
            logger.warning("unknown variable %s: smcfast reads %s", name, ", ".join(sorted(PREFIX + k for k in known)))
