"""Boots the machine with software RoCE and the kernel's SMC, and runs the tests of tests/vm or the RDMA benchmark in it."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from interpreters import Venv
from phases import ROOT, PhaseFailed, Phases, capture

BOOT = ROOT / "tests" / "vm" / "boot.py"
OUT = ROOT / "target" / "vm"
HERE = "TEST_RDMA_HERE"
"""The environment variable by which somebody says that this machine's own RDMA may be used and its settings changed."""
VERBS = "TEST_VERBS"
"""The environment variable with the file of tests/verbs_rxe.rs."""
PASSED = (VERBS, "PYTEST_ADDOPTS")
"""What of the environment the machine has, too."""
TESTS_LIMIT = 900.0  # seconds for the tests; the boot, which has a limit of its own, comes before
BENCH_LIMIT = 600.0
SOAK_LIMIT = 1800.0
BOOT_LIMIT = 400.0
# Emulated, a test of a second may take ten.
PATIENCE = {"TEST_PATIENCE": "3"}
PATHS = {"PYTHONPATH": f"{ROOT / 'benches'}:{ROOT / 'tests'}"}
PATIENT = ("-o", "timeout=240", "-o", "faulthandler_timeout=300")


def is_possible() -> bool:
    """Is this a machine that can be another one of its kind, which is x86-64?"""
    return platform.machine() == "x86_64"


def tests(phases: Phases, venv: Venv, tools: Venv, arguments: Sequence[str]) -> None:
    """The tests of tests/vm, in one boot."""
    pytest: list[str | Path] = [venv.python, "-m", "pytest", "tests/vm", "-p", "no:benchmark", *arguments]
    os.environ[VERBS] = str(_verbs(phases))
    if HERE in os.environ:
        phases.check("vm tests, on this machine", pytest, limit=TESTS_LIMIT)
        return
    # A mistake that keeps the tests from being collected shows before a boot, and what they import is compiled once, here.
    collected = {HERE: "1", "PYTHONDONTWRITEBYTECODE": ""}
    phases.run("vm tests: collect", [*pytest, "--collect-only", "--quiet"], env=collected)
    out = OUT / "tests"
    boot(phases, "vm tests", tools, out, [*pytest, *PATIENT, f"--junit-xml={out / 'junit.xml'}"], TESTS_LIMIT)


def soak(phases: Phases, venv: Venv, tools: Venv) -> None:
    """What of tests/vm is too much for every run, in one boot."""
    out = OUT / "soak"
    pytest: list[str | Path] = [venv.python, "-m", "pytest", "tests/vm", "-p", "no:benchmark", "-m", "soak"]
    pytest += ["-o", f"timeout={SOAK_LIMIT:.0f}", f"--junit-xml={out / 'junit.xml'}"]
    boot(phases, "soak links", tools, out, pytest, SOAK_LIMIT, settings={"TEST_FULL": "1", "TEST_PATIENCE": "20"})


def _verbs(phases: Phases) -> Path:
    """The file of tests/verbs_rxe.rs, which tests/vm/test_verbs.py runs.

    :raises PhaseFailed: it cannot be built.
    """
    build = ["cargo", "test", "--locked", "--test", "verbs_rxe", "--no-run"]
    phases.run("vm tests: build tests/verbs_rxe.rs", build)
    for line in (capture([*build, "--message-format=json"]) or "").splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "verbs_rxe":
            return Path(message["executable"])
    raise PhaseFailed("vm tests: cargo does not say where tests/verbs_rxe.rs was built")


def bench(phases: Phases, venv: Venv, tools: Venv, arguments: Sequence[str]) -> None:
    """The RDMA benchmark, in one boot; then the table, whose gates may fail this.

    The environment's KEEP=1 makes the results those of the repository, which docs/benchmarks.md shows.
    """
    out = OUT / "bench"
    command: list[str | Path] = [venv.python, ROOT / "benches" / "rdma.py", "--into", out / "rdma.json", *arguments]
    boot(phases, "rdma benchmark", tools, out, command, BENCH_LIMIT, "rdma.json")
    keep = ["--keep"] if os.environ.get("KEEP") == "1" else []
    phases.run("table", [venv.python, "-m", "suite.roce", out / "rdma.json", *keep], env=PATHS)


def boot(
    phases: Phases,
    name: str,
    tools: Venv,
    out: Path,
    command: Sequence[str | Path],
    limit: float,
    expect: str = "junit.xml",
    settings: Mapping[str, str] | None = None,
) -> None:
    """Run a command in the machine, `limit` seconds at most; it must leave the file `expect` in `out`."""
    machine: list[str | Path] = [tools.python, BOOT, "--out", out, "--expect", expect, f"--limit={limit:.0f}"]
    passed = {key: os.environ.get(key, "") for key in PASSED}
    env = {**PATIENCE, **PATHS, **passed, **(settings or {})}
    machine += [f"--env={key}={value}" for key, value in env.items()]
    phases.check(name, [*machine, "--", *command], env=tools.env, limit=limit + BOOT_LIMIT)
