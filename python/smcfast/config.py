"""`SmcConfig`: every knob, its range and its unit."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence  # noqa: TC003 - for typing.get_type_hints
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from smcfast import patterns, setting
from smcfast.log import logger
from smcfast.setting import Refused, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

PATHS: Final = ("smc-d", "smc-r", "kernel")
ABSENT_PATHS: Final = ("smc-r", "kernel")
"""Paths that may be asked for, for later, and are never taken by this version."""
DISCOVERIES: Final = ("rendezvous", "option")
ABSENT_DISCOVERIES: Final = ("option",)
UEIDS_MAX: Final = 8
NOT_FIELDS: Final = frozenset({"LOG"})
"""Variables that are read elsewhere."""

_UEID = re.compile(r"[A-Z0-9][A-Z0-9.\-]{0,31}")
_warned: set[str] = set()


def _check_ueids(ueids: tuple[Any, ...]) -> None:
    if len(ueids) > UEIDS_MAX or not all(isinstance(ueid, str) and _UEID.fullmatch(ueid) for ueid in ueids):
        raise Refused


def _parse_assume(texts: tuple[Any, ...]) -> tuple[patterns.Pattern, ...]:
    for text in texts:
        if not isinstance(text, str):
            raise Refused(f"{text!r} is no string")
    try:
        return tuple(patterns.parse(text) for text in texts)
    except ValueError as error:
        raise Refused(str(error)) from None


def _check_assume(texts: tuple[Any, ...]) -> None:
    _parse_assume(texts)


@dataclass(frozen=True)
class SmcConfig:
    """How connections and servers look for a faster path than TCP; immutable, and checked when it is built.

    A field that is not given comes from its environment variable, SMCFAST_ and the field's name in capitals, else it is
    the default. In variables commas stand between the members of a sequence, K, M or G (powers of 1024) may follow a
    size, and a switch is 1 or 0. An empty variable is an empty sequence, and for other fields as good as none.

    :param fallback: what happens when a connection can only be TCP: "allow" logs the reason at level INFO, "warn" at
        WARNING; "forbid" raises `SmcFallbackError`, and a server that was started closes the connection and logs the
        reason at WARNING. Default: "allow".
    :param paths: paths that may be taken, of "smc-d", "smc-r" and "kernel"; none of them leaves TCP. This version has
        "smc-d" only, and never takes the others. Default: ("smc-d", "smc-r").
    :param discovery: how to find out whether the peer speaks SMC, of "rendezvous" and "option". This version has
        "rendezvous" only. Default: ("rendezvous", "option").
    :param assume: destinations, and own listeners, that are known to speak SMC, as "host:port": the host is a name, an
        address, a network (10.0.0.0/8) or *, IPv6 in brackets, the port a number or *. The only setting that can put
        handshake bytes into the stream of a plain TCP peer. Default: ().
    :param rmb_size: bytes of each connection's receive buffer, a power of two, 16384..536870912. Default: 1048576.
    :param spin_us: microseconds for which a waiter looks for the peer's bytes before it sleeps, 0..10000: the first 5 in
        place, the rest between turns of the loop. 0 sleeps at once. Default: 50.
    :param preallocate: take a receive buffer's memory at set-up instead of at its first use. Default: False.
    :param rendezvous_dir: a directory shared between containers. Not in this version, which wants None. Default: None.
    :param allow_uids: user ids, besides the own one, whose processes may share memory with this one, each
        0..4294967294. Default: ().
    :param handshake_timeout: seconds for discovery and handshake together, 0.1..3600. Default: 6.0.
    :param max_pending_handshakes: handshakes that a server has under way at once, 1..65536; connections beyond are TCP.
        Default: 1024.
    :param ueids: enterprise ids for smc-r, at most 8, each 1..32 of A-Z 0-9 . - and beginning with a letter or a digit.
        Without effect in this version, which has no smc-r. Default: ().
    :param device: the RDMA device for smc-r. Not in this version, which wants None. Default: None.
    :raises SmcConfigError: a value is out of its range; the message has the field or the variable, what it was, the
        range and the unit.
    """

    fallback: Literal["allow", "warn", "forbid"] = setting.choice("allow", "allow", "warn", "forbid")
    paths: Sequence[str] = setting.words(("smc-d", "smc-r"), *PATHS, absent=ABSENT_PATHS)
    discovery: Sequence[str] = setting.words(("rendezvous", "option"), *DISCOVERIES, absent=ABSENT_DISCOVERIES)
    assume: Sequence[str] = setting.several(
        (), "strings host:port, [v6]:port, network:port, where * is any host or port", _check_assume
    )
    rmb_size: int = setting.size(1 << 20, 16 << 10, 512 << 20)
    spin_us: int = setting.integer(50, 0, 10_000, "microseconds")
    preallocate: bool = setting.switch(False)
    rendezvous_dir: str | None = setting.nothing("this version has no rendezvous by directory")
    allow_uids: Sequence[int] = setting.integers(0, 2**32 - 2, "user ids")
    handshake_timeout: float = setting.seconds(6.0, 0.1, 3600)
    max_pending_handshakes: int = setting.integer(1024, 1, 65536, "handshakes")
    ueids: Sequence[str] = setting.several(
        (),
        f"at most {UEIDS_MAX} ids of 1..32 characters A-Z 0-9 . -, a letter or a digit first (without effect: this "
        "version has no smc-r)",
        _check_ueids,
    )
    device: str | None = setting.nothing("this version has no smc-r")

    def __post_init__(self) -> None:
        for one in settings():
            value = getattr(self, one.name)
            object.__setattr__(self, one.name, one.from_variable() if value is one else one.take(value))
        object.__setattr__(self, "_assumed", _parse_assume(tuple(self.assume)))
        _warn_of_strangers()

    def assumes(self, host: str | None, address: str, port: int) -> bool:
        """Is the end at `address` and `port`, which the caller named `host`, known to speak SMC?"""
        assumed: tuple[patterns.Pattern, ...] = self._assumed  # type: ignore[attr-defined]
        return bool(assumed) and patterns.any_matches(assumed, host, address, port)


def settings() -> Iterator[Setting]:
    """The settings of `SmcConfig`, in its order."""
    return (cast("Setting", field.default) for field in fields(SmcConfig))


def configured(config: object) -> SmcConfig:
    """The `config=` of an entry point; None stands for variables and defaults, as they were at its first use.

    :raises TypeError: it is something else.
    """
    if config is None:
        return _default()
    if not isinstance(config, SmcConfig):
        raise TypeError(f"config must be an SmcConfig or None, not {type(config).__name__}")
    return config


@functools.cache
def _default() -> SmcConfig:
    """Read the environment once in this process: it costs more than the rest of a connect's arguments."""
    return SmcConfig()


def _warn_of_strangers() -> None:
    """Say once in this process which SMCFAST_* variables nobody reads: most are misspelt."""
    known = NOT_FIELDS.union(one.name.upper() for one in settings())
    for name in os.environ:
        if name.startswith(setting.PREFIX) and name not in _warned and name.removeprefix(setting.PREFIX) not in known:
            _warned.add(name)
            names = ", ".join(sorted(setting.PREFIX + k for k in known))
            logger.warning("unknown environment variable %s: smcfast reads %s", name, names)
