"""What the two ends of one connection are going to do, made of the connection's seed alone, so that both ends know it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Final

import smcfast

LARGEST: Final = 1 << 20
"""Bytes of the largest single write or read."""
PERIOD: Final = 1048573
"""Bytes after which the pattern repeats itself: a prime, so that no two places of a ring hold the same by chance."""
ENDINGS: Final = ("eof", "eof", "eof", "linger", "close", "abort", "cancel")
RMB_SIZES: Final = (16 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20)
LIAR: Final = 1 << 63
"""The bit of a seed that says that the client is going to lie."""


@cache
def _bytes() -> memoryview:
    once = random.Random(0).randbytes(PERIOD)
    assert max(map(len, once.split(b"\n"))) < 1 << 15, "readline needs lines that are shorter than its limit"
    return memoryview(once * 3)


def pattern(start: int, position: int, size: int) -> memoryview:
    """The `size` bytes (at most `PERIOD`) that a stream beginning at `start` has at `position`."""
    at = (start + position) % PERIOD
    return _bytes()[at : at + size]


@dataclass(frozen=True)
class Side:
    """One end's part."""

    start: int
    """Where in the pattern its stream begins."""
    goal: int
    """Bytes that it writes."""
    ending: str
    """How it ends behind them: "eof" (half-close, read to the end), "linger" (read to the end), "close", "abort", "cancel"
    (its task is cancelled, and closes)."""
    largest: int
    """Bytes of its largest write and read."""
    drains: float
    """How probable it is that it drains after a write."""

    @property
    def stays(self) -> bool:
        """Does it read to the end of the other's stream?"""
        return self.ending in ("eof", "linger")


@dataclass(frozen=True)
class Plan:
    """Both parts."""

    seed: int
    client: Side
    server: Side
    echo: bool
    """The server sends back what it gets."""

    @classmethod
    def of(cls, seed: int) -> Plan:
        """The plan of a connection."""
        rng = random.Random(seed)
        client, server = _side(rng), _side(rng)
        echo = rng.random() < 0.3
        if echo:
            server = Side(client.start, client.goal, "eof", server.largest, server.drains)
            # Nobody reads behind a close; an echo that waits for room would wait for ever, as over TCP.
            if client.ending != "abort":
                client = Side(client.start, client.goal, "eof", client.largest, client.drains)
        elif client.ending == server.ending == "linger":
            server = Side(server.start, server.goal, "eof", server.largest, server.drains)
        return cls(seed, client, server, echo)

    def parts(self, role: str) -> tuple[Side, Side]:
        """The own part and the peer's."""
        return (self.client, self.server) if role == "client" else (self.server, self.client)


def size(rng: random.Random, most: int) -> int:
    """1 to `most`: small, middling and large ones all occur often."""
    return min(most, int(2 ** rng.uniform(0, most.bit_length())))


def _side(rng: random.Random) -> Side:
    largest = rng.choice((64, 5_000, 70_000, LARGEST, LARGEST))
    goal = size(rng, min(1 << 23, 2_000 * largest)) - 1
    return Side(rng.randrange(PERIOD), goal, rng.choice(ENDINGS), largest, rng.choice((0.1, 0.5, 1.0)))


def configured(rng: random.Random) -> smcfast.SmcConfig:
    """Any settings; set-up has time even when a process is stopped meanwhile."""
    return smcfast.SmcConfig(
        rmb_size=rng.choice(RMB_SIZES),
        spin_us=rng.choice((0, 50, 50, 1000)),
        preallocate=rng.random() < 0.2,
        handshake_timeout=60.0,
    )
