"""Counts instructions with valgrind's callgrind and holds them to the figures that the repository keeps.

Instructions, unlike times, are the same on a loaded machine and on a quiet one. Each work is done SOME and then MORE times,
and the difference is divided: the start cancels out. What is counted: benches/count.rs and benches/count_streams.py.
"""

import json
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from interpreters import Venv
from phases import ROOT, PhaseFailed, Phases, capture

KEPT = ROOT / "benches" / "results" / "counts.json"
TOLERANCE = 0.03
"""How much more than kept is a failure; less by as much is named, so that the figures are brought up to date."""
SLACK = 2
"""Instructions that are allowed besides: 3 % of a short path is less than one."""
TOLERANCE_ELSEWHERE = 0.25
"""The same where compiler or interpreter are others than those of the figures."""
SOME, MORE = 1000, 3000
SOME_STREAMS, MORE_STREAMS = 2000, 12000
LIMIT = 120.0  # seconds for one run under callgrind

# Copies of more than 512 bytes use what the CPU has, so their counts are the machine's.
_PICKED = re.compile(r"wire: |cursor: |window: |copy: (16|64) B in and out$|ring: write and read 64 B$")


def run(phases: Phases, venv: Venv, *, update: bool) -> None:
    """Count, print, and compare with what is kept, or keep it."""
    if shutil.which("valgrind") is None:
        print("instructions: not counted, valgrind is not installed")
        return
    program = _built(phases)
    names = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    found = {
        "rust": {
            "with": (capture(["rustc", "--version"]) or "").strip(),
            "counts": {name: _per_time([program, name], SOME, MORE) for name in names if _PICKED.match(name)},
        },
        "python": {
            "with": _interpreter(venv),
            "counts": {
                "streams: write and read 64 B": _per_time(
                    [venv.python, ROOT / "benches" / "count_streams.py"], SOME_STREAMS, MORE_STREAMS
                )
            },
        },
    }
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    if update:
        kept[platform.machine()] = found
        KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(f"kept in {KEPT.relative_to(ROOT)}")
    phases.failures += compare(found, kept.get(platform.machine()))


def compare(found: dict[str, Any], kept: dict[str, Any] | None) -> list[str]:
    """Print each count beside the one that is kept; what is wrong."""
    if kept is None:
        print(f"instructions: no figures are kept for {platform.machine()} (make count-update)")
    faults = []
    for language, one in found.items():
        before = (kept or {}).get(language, {"with": one["with"], "counts": {}})
        same = before["with"] == one["with"]
        tolerance = TOLERANCE if same else TOLERANCE_ELSEWHERE
        where = "" if same else f", kept with {before['with']}: tolerance {tolerance:.0%}"
        print(f"\ninstructions, {one['with']}{where}")
        for name, count in one["counts"].items():
            old = before["counts"].get(name)
            change = "" if old is None else f"{old:>9} {count / old - 1:+8.1%}"
            print(f"  {name:45}{count:>9} {change}".rstrip())
            if kept is not None and old is None:
                faults.append(f"{name}: not among the figures kept (make count-update)")
            elif old is not None and count > old * (1 + tolerance) + SLACK:
                faults.append(f"{name}: {count} instructions, {count / old - 1:+.1%}; {tolerance:.0%} are allowed")
            elif old is not None and count < old * (1 - tolerance) - SLACK:
                print("    fewer than kept: make count-update holds on to that")
        faults += [
            f"{name}: not counted any more (make count-update)" for name in before["counts"].keys() - one["counts"]
        ]
    return faults


def _built(phases: Phases) -> Path:
    command = ["cargo", "build", "--locked", "--release", "--bench", "count"]
    phases.run("what is counted", command)
    messages = capture([*command, "--message-format=json"], limit=300) or ""
    made = [json.loads(line).get("executable") for line in messages.splitlines()]
    (program,) = [Path(path) for path in made if path]
    return program


def _interpreter(venv: Venv) -> str:
    text = capture([venv.python, "-c", "import platform, sys; print(sys.version, platform.libc_ver())"]) or ""
    return " ".join(text.split())


def _per_time(command: list[str | Path], some: int, more: int) -> int:
    """Instructions of one time."""
    return round((_instructions(command, more) - _instructions(command, some)) / (more - some))


def _instructions(command: list[str | Path], times: int) -> int:
    """Instructions of a whole run.

    :raises PhaseFailed: it failed, or callgrind did not say.
    """
    words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *map(str, command), str(times)]
    # The order in which sets and dicts of strings are walked must be the same each time.
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONHASHSEED": "0", "LC_ALL": "C"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, timeout=LIMIT)
    said = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or said is None:
        raise PhaseFailed(f"valgrind {command}: {done.stderr[-2000:]}")
    return int(said[1])
