"""A client that keeps to its part of the plan and meanwhile writes what it likes into the memory that both ends share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Final

import smcfast
from soak.judge import HELLO
from soak.plan import Plan, configured
from soak.talk import Talk
from support.loops import run_within

if TYPE_CHECKING:
    from support.channel import Channel

LIFE: Final = 5.0
"""Seconds after which it ends, whatever its own lies have done to it."""
WORDS: Final = range(0, 1024, 8)
"""Where the control words lie, and some that are none."""
VALUES: Final = (0, 1, 2**64 - 1, 2**63, 2**32, 2**32 - 1, 16 << 10, (16 << 10) + 1, (16 << 10) - 1)


def lie(_: Channel, host: str, port: int, seed: int) -> None:
    """Run in a child process: nothing that happens to a liar is a failure."""
    rng = random.Random(seed)
    with contextlib.suppress(Exception):
        run_within(LIFE, rng.choice(("asyncio", "uvloop")), lambda: _lie(host, port, seed, rng))
    if rng.random() < 0.3:
        os._exit(0)


async def _lie(host: str, port: int, seed: int, rng: random.Random) -> None:
    reader, writer = await smcfast.open_smc_connection(host, port, config=configured(rng))
    writer.write(seed.to_bytes(HELLO, "big"))
    talk = asyncio.ensure_future(Talk(Plan.of(seed), "client", reader, writer).run())
    while not talk.done():
        await asyncio.sleep(rng.uniform(0, 0.01))
        for _ in range(rng.randrange(4)):
            _write(rng.choice(_pages()), rng)


def _pages() -> list[int]:
    """The addresses of the header pages of all rings that are mapped here."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [int(line.split("-")[0], 16) for line in lines if "memfd:smcfast" in line]


def _write(page: int, rng: random.Random) -> None:
    value = rng.choice(VALUES) if rng.random() < 0.7 else rng.getrandbits(64)
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(page + rng.choice(WORDS))
        memory.write(value.to_bytes(8, "little"))
