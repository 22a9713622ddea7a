"""The protocol's machines under seeds: the Rust simulations, for as many connections as is asked for."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
TESTS: Final = {"messages": "simulation", "words": "simulation", "handshakes": "handshake_simulation"}
"""The simulations, and the programs that have them; the last one gets half of the connections, since it is the fastest."""
SHARES: Final = {"messages": 0.25, "words": 0.25, "handshakes": 0.5}


class SimulationError(AssertionError):
    """A simulation has failed; its output says with which seed."""


def run(connections: int, seed: int) -> dict[str, Any]:
    """So many simulated connections in all, under seeds that begin with `seed`; the figures.

    :raises SimulationError: one of them went wrong.
    """
    begun = time.monotonic()
    figures: dict[str, Any] = {"connections": 0}
    for name, program in TESTS.items():
        count = round(connections * SHARES[name])
        figures[name] = _simulate(program, name, seed, count)
        figures["connections"] += count
    return {**figures, "seconds": round(time.monotonic() - begun)}


def _simulate(program: str, name: str, first: int, count: int) -> int:
    command = ["cargo", "test", "--locked", "--release", "--test", program, name, "--", "--exact", "--nocapture"]
    env = {**os.environ, "SMCFAST_SEEDS": f"{first}..{first + count}"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    said = re.search(rf"{name}: (\d+) seeds", done.stdout)
    if done.returncode or said is None or int(said[1]) != count:
        raise SimulationError(f"{name} from seed {first}:\n{done.stdout}\n{done.stderr}")
    return count
