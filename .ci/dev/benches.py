"""Runs the benchmark suite several times and judges the runs together."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from interpreters import Interpreter, Venv, requirements
from phases import ROOT, PhaseFailed, Phases

RUNS = 3
OUT = ROOT / "target" / "bench"
LATEST = ROOT / "benches" / "results" / "latest.json"
# The suite's own folder and the helpers that it shares with the tests.
PATHS = {"PYTHONPATH": f"{ROOT / 'benches'}:{ROOT / 'tests'}"}


def run(phases: Phases, venv: Venv, arguments: Sequence[str]) -> None:
    """Three runs, the ladder of sizes in the first; then the table, whose gates may fail this.

    The environment's KEEP=1 makes the results those of the repository, which the README shows.
    """
    OUT.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(1, RUNS + 1):
        files.append(OUT / f"run-{number}.json")
        command: list[str] = [str(venv.tool("pytest")), "benches", "--benchmark-only", "--benchmark-quiet"]
        command += [f"--benchmark-json={files[-1]}", *(["-k", "rows"] if number > 1 else []), *arguments]
        phases.run(f"benchmarks, run {number} of {RUNS}", command, limit=1200)
    keep = ["--keep"] if os.environ.get("KEEP") == "1" else []
    phases.run("table", [venv.python, "-m", "suite.results", *files, "--into", LATEST, *keep], env=PATHS)


def applications(phases: Phases, venv: Venv, arguments: Sequence[str]) -> None:
    """The application benchmark, then its table, whose gate may fail this. KEEP=1 as for `run`."""
    OUT.mkdir(parents=True, exist_ok=True)
    found = OUT / "apps.json"
    phases.run("applications", [venv.python, ROOT / "benches" / "services.py", "--into", found, *arguments], env=PATHS)
    keep = ["--keep"] if os.environ.get("KEEP") == "1" else []
    phases.run("table", [venv.python, "-m", "suite.services", found, *keep], env=PATHS)


def compare(phases: Phases, build: Callable[[Path], Path], base: Interpreter, reference: str) -> None:
    """Build the commit `reference` and this work tree, and measure a few rows by both in turn.

    :param build: makes the wheel of the source tree at a path.
    """
    wheels = {"new": build(ROOT)}
    with tempfile.TemporaryDirectory(prefix="smcfast-compare-") as folder:
        tree = Path(folder) / "tree"
        phases.run(f"the commit {reference}", ["git", "worktree", "add", "--detach", tree, reference])
        try:
            wheels["old"] = build(tree)
            pythons = {}
            for name, wheel in wheels.items():
                venv = Venv(f".venv-bench-{name}", base)
                venv.ensure(phases, "test")
                venv.install(phases, wheel)
                pythons[name] = venv.python
        finally:
            phases.run("the commit: removed", ["git", "worktree", "remove", "--force", tree])
    command = [pythons["new"], ROOT / "benches" / "compare.py", pythons["old"], pythons["new"]]
    phases.run(f"{reference} (old) and the work tree (new)", command, env=PATHS, limit=600)


def install_rivals(phases: Phases, venv: Venv) -> None:
    """Install what is compared with but need not be there, each by itself; the suite says what it is without."""
    stamp = venv.path / "rivals"
    wanted = "\n".join(requirements("rivals"))
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    for rival in requirements("rivals"):
        try:
            venv.pip(phases, rival, rival)
        except PhaseFailed as error:
            print(f"the suite goes on without {rival}: {error}")
    stamp.write_text(wanted)
