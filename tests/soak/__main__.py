"""``python -m soak``: the parts one after the other, a line of figures for each, and a failure for whatever is wrong."""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("kill", "cancel", "simulate", "traffic")


def main() -> int:
    """The exit status: 0 if nothing was wrong."""
    options = _options()
    parts: dict[str, tuple[Callable[..., Any], Any]] = {
        "kill": (lambda: _part("kill")(options.rounds, options.seed), f"rounds={options.rounds}"),
        "cancel": (lambda: _part("cancel")(options.rounds, options.seed), f"rounds={options.rounds}"),
        "simulate": (
            lambda: _part("simulate")(options.connections, options.seed),
            f"connections={options.connections}",
        ),
        "traffic": (lambda: _part("traffic")(60 * options.minutes, options.seed), f"minutes={options.minutes}"),
    }
    failed = []
    for name in options.parts or PARTS:
        play, what = parts[name]
        print(f"soak {name}: {what} seed={options.seed}", flush=True)
        try:
            figures = play()
        except Exception:  # noqa: BLE001 - the other parts still run
            traceback.print_exc()
            failed.append(name)
            print(f"soak {name}: FAILED, seed={options.seed}", flush=True)
        else:
            print(f"soak {name}: {json.dumps(figures)}", flush=True)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="default: all")
    parser.add_argument("--rounds", type=int, default=10_000, help="of kill and of cancel (default %(default)s)")
    parser.add_argument("--connections", type=int, default=1_000_000, help="of simulate (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of traffic (default %(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="default: a new one")
    return parser.parse_args()


def _part(name: str) -> Callable[..., Any]:
    """Imported when its turn comes: a part that is broken does not keep the others from running."""
    run: Callable[..., Any] = importlib.import_module(f"soak.{name}").run
    return run


if __name__ == "__main__":
    sys.exit(main())
