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
DISCOVERIES: Final = ("rendezvous", "option")
UEIDS_MAX: Final = 8
NOT_FIELDS: Final = frozenset({"LOG", "RUN"})
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
    :param paths: paths that may be taken, of "smc-d", "smc-r" and "kernel", the preferred first; none of them leaves TCP.
        "kernel" is a socket of the kernel's own SMC. Without "smc-d" processes of one host use an RDMA device too, where there
        is one for their connection. Default: ("smc-d", "smc-r").
    :param discovery: how to find out whether the peer speaks SMC, of "rendezvous" (on this host) and "option" (the TCP
        option, on any); none of them leaves the peers in `assume`. Default: ("rendezvous", "option").
    :param assume: destinations, and own listeners, that are known to speak SMC, as "host:port": the host is a name, an
        address, a network (10.0.0.0/8) or *, IPv6 in brackets, the port a number or *. The only setting that can put
        handshake bytes into the stream of a plain TCP peer. Default: ().
    :param rmb_size: bytes of each connection's receive buffer, a power of two, 16384..536870912. Default: 1048576.
    :param spin_us: microseconds for which a waiter looks for the peer's bytes before it sleeps, 0..10000: the first 5 in
        place, the rest between turns of the loop; handshakes look twice as long, between turns of the loop. 0 sleeps at
        once. Default: 50.
    :param preallocate: take a receive buffer's memory at set-up instead of at its first use. Default: False.
    :param rendezvous_dir: a directory that containers share, as an absolute path, which is kept as a str: the rendezvous
        then works by names in it, where it cannot by sockets of one network namespace. Default: None.
    :param allow_uids: user ids, besides the own one, whose processes may share memory with this one, each
        0..4294967294; both ends need it. Default: ().
    :param handshake_timeout: seconds for discovery and handshake together, 0.1..3600. Default: 6.0.
    :param max_pending_handshakes: handshakes that a server has under way at once, 1..65536; connections beyond are TCP.
        Default: 1024.
    :param ueids: enterprise ids for smc-r, the best first, at most 8, each 1..32 of A-Z 0-9 . - and beginning with a letter
        or a digit. The kernel's SMC as the peer needs one that it has too. Default: ().
    :param device: the RDMA device for smc-r, as "rxe0" or "mlx5_0:1" with its port, or an open pyverbs Context, which counts
        for its device; None takes the one of the connection's physical network, else of its interface. Default: None.
    :param gid_index: the entry of that device's GID table, 0..255; None takes the one of the connection's subnet.
        Default: None.
    :param max_links: links of a link group that a client asks a server for over RDMA, 1..2. This version uses one: with 2 a
        server may offer a second link, which is rejected; a server answers 1. Default: 1.
    :param testlink_s: seconds without a message after which a link is tested, 0.1..3600; 0 never tests. Default: 30.0.
    :param rocev2_in_v1: let version 1 of the handshake carry RoCEv2 GIDs, which only smcfast understands: it makes smc-r over
        IPv6 possible. Default: False.
    :raises SmcConfigError: a value is out of its range; the message has the field or the variable, what it was, the
        range and the unit.
    """

    fallback: Literal["allow", "warn", "forbid"] = setting.choice("allow", "allow", "warn", "forbid")
    paths: Sequence[str] = setting.words(("smc-d", "smc-r"), *PATHS, empty="TCP alone")
    discovery: Sequence[str] = setting.words(("rendezvous", "option"), *DISCOVERIES, empty="assumed peers alone")
    assume: Sequence[str] = setting.several(
        (), "strings host:port, [v6]:port, network:port, where * is any host or port", _check_assume
    )
    rmb_size: int = setting.size(1 << 20, 16 << 10, 512 << 20)
    spin_us: int = setting.integer(50, 0, 10_000, "microseconds")
    preallocate: bool = setting.switch(False)
    rendezvous_dir: str | os.PathLike[str] | None = setting.directory()  # noqa: RUF009 - it is immutable
    allow_uids: Sequence[int] = setting.integers(0, 2**32 - 2, "user ids")
    handshake_timeout: float = setting.seconds(6.0, 0.1, 3600)
    max_pending_handshakes: int = setting.integer(1024, 1, 65536, "handshakes")
    ueids: Sequence[str] = setting.several(
        (),
        f"at most {UEIDS_MAX} ids of 1..32 characters A-Z 0-9 . -, a letter or a digit first",
        _check_ueids,
    )
    device: str | None = setting.rdma_device()
    gid_index: int | None = setting.integer_or_none(0, 255, "in the device's GID table")
    max_links: int = setting.integer(1, 1, 2, "links")
    testlink_s: float = setting.seconds_or_off(30.0, 0.1, 3600)
    rocev2_in_v1: bool = setting.switch(False)

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
