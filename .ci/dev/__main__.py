"""The commands behind the Makefile: ``python3 .ci/dev COMMAND [ARGUMENT ...]``. Standard library only."""

import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import benches
import counts
import interpreters
import licences
import machine
import sanitizers
import system
import wheels
from interpreters import Interpreter, Venv
from phases import ROOT, Check, PhaseFailed, Phases, capture

SOAK_LIMIT = 4 * 3600.0  # seconds; the parts have guards of their own for whatever hangs
PYTEST_LIMIT = 1500.0  # seconds for one half of a suite; a single test has 90 (pyproject.toml)
HALVES = ("[a-l]", "[!a-l]")  # by the letter behind test_: as many seconds in either


def setup(phases: Phases, _: Sequence[str]) -> None:
    system.setup(phases)
    if machine.is_possible():
        system.setup_machine(phases)
    pythons = interpreters.find()
    print(
        "Python:", ", ".join(f"{python.full} ({python.path})" for python in pythons) or "none with venv and ensurepip"
    )
    print("Rust:", (capture(["rustc", "--version"]) or "rustc does not run").strip())


def demo(phases: Phases, _: Sequence[str]) -> None:
    system.setup(phases)
    venv = Venv(".venv-demo", _pythons()[-1])
    venv.ensure(phases)
    _install(phases, _wheel(phases), venv)
    phases.run("demo", [venv.python, "-m", "smcfast", "demo"], limit=300)


def test(phases: Phases, _: Sequence[str]) -> None:
    system.setup(phases)
    wheel = _wheel(phases)
    test_rust(phases, ())
    phases.beside(_loom(), *sanitizers.checks())  # a good part of each build is one thread's
    pythons = _pythons()
    whole = (pythons[0], pythons[-1])
    _pytest(phases, wheel, {python: _halves() if python in whole else [["-m", "smoke"]] for python in pythons})
    test_vm(phases, ())


def test_rust(phases: Phases, arguments: Sequence[str]) -> None:
    system.check_toolchains()
    if capture(["cargo", "nextest", "--version"]) is not None:
        phases.check("rust tests", ["cargo", "nextest", "run", "--locked", "--no-fail-fast", *arguments])
    else:
        phases.check("rust tests", ["cargo", "test", "--locked", "--lib", "--tests", "--no-fail-fast", *arguments])
    phases.check("rust doctests", ["cargo", "test", "--locked", "--doc", *arguments])


def loom(phases: Phases, _: Sequence[str]) -> None:
    phases.beside(_loom())


def sanitize(phases: Phases, _: Sequence[str]) -> None:
    phases.beside(*sanitizers.checks())


def test_python(phases: Phases, arguments: Sequence[str]) -> None:
    _pytest(phases, _wheel(phases), {_pythons()[0]: [arguments] if arguments else _halves()})


def test_vm(phases: Phases, arguments: Sequence[str]) -> None:
    """tests/vm in the machine with software RoCE."""
    if not machine.is_possible():
        print("\n--- vm tests: left out, the machine is one of x86-64")
        return
    tools = _machine_tools(phases)
    machine.tests(phases, _test_venv(phases, _wheel(phases), _pythons()[0]), tools, arguments)


def test_apps(phases: Phases, arguments: Sequence[str]) -> None:
    """tests/apps: applications of others, with servers of their own."""
    system.setup_servers(phases)
    pytest = _apps_venv(phases).tool("pytest")
    phases.check("apps", [pytest, "tests/apps", "-p", "no:benchmark", *arguments], env={"TEST_APPS": "1"})


def smoke(phases: Phases, _: Sequence[str]) -> None:
    _pytest(phases, _wheel(phases), {python: [["-m", "smoke"]] for python in _pythons()})


def fuzz(phases: Phases, arguments: Sequence[str]) -> None:
    """tests/fuzz/run SECONDS, which runs each target for so long."""
    system.setup(phases)
    seconds = arguments[0] if arguments else "60"
    phases.check("fuzz", [ROOT / "tests" / "fuzz" / "run", seconds], limit=4 * int(seconds) + 900)


def lint(phases: Phases, _: Sequence[str]) -> None:
    system.check_toolchains()
    strict = ["--", "-D", "warnings"]
    phases.check("rustfmt", ["cargo", "fmt", "--check"])
    phases.check("rustfmt, fuzz", ["cargo", "fmt", "--check", "--manifest-path", "tests/fuzz/Cargo.toml"])
    phases.check("clippy", ["cargo", "clippy", "--locked", "--all-targets", *strict])
    phases.check("clippy, python", ["cargo", "clippy", "--locked", "--all-targets", "--features", "python", *strict])
    phases.check("rustdoc", ["cargo", "doc", "--locked", "--no-deps"], env={"RUSTDOCFLAGS": "-D warnings"})
    licences.audit(phases)
    tools = _linters(phases)
    phases.check("ruff format", [tools.tool("ruff"), "format", "--check"])
    phases.check("ruff check", [tools.tool("ruff"), "check"])
    _install(phases, _wheel(phases), tools)
    phases.check("mypy", [tools.python, "-m", "mypy", "python/smcfast"])
    phases.check("mypy, tools", [tools.python, "-m", "mypy", ".ci/dev"])
    tested = [
        "tests/support",
        "tests/conftest.py",
        "tests/soak",
        "tests/vm/boot.py",
        "tests/vm/conftest.py",
        "tests/vm/support",
        "tests/apps/conftest.py",
        "tests/apps/support",
        "benches/suite",
        "benches/compare.py",
        "benches/count_streams.py",
        "benches/in_place.py",
        "benches/rdma.py",
        "benches/services.py",
    ]
    phases.check("mypy, tests", [tools.python, "-m", "mypy", *tested])
    stubtest: list[str | Path] = [
        tools.python,
        "-m",
        "mypy.stubtest",
        "smcfast._core",
        "--mypy-config-file",
        "pyproject.toml",
    ]
    phases.check("stubtest", stubtest)
    # From elsewhere: in the repository it would take the sources for the package.
    types: list[str | Path] = [tools.tool("pyright"), "--verifytypes", "smcfast", "--ignoreexternal"]
    phases.check("pyright", types, env=tools.env, cwd=tools.path)
    if not (ROOT / "python" / "smcfast" / "_core.pyi").exists():  # stubtest says nothing of a stub that is not there
        phases.failures.append("python/smcfast/_core.pyi is missing")


def format_(phases: Phases, _: Sequence[str]) -> None:
    tools = _linters(phases)
    phases.run("rustfmt", ["cargo", "fmt"])
    phases.run("ruff format", [tools.tool("ruff"), "format"])
    phases.run("ruff check", [tools.tool("ruff"), "check", "--fix"])


def soak(phases: Phases, arguments: Sequence[str]) -> None:
    """tests/soak with its options, and the part "links", which is a part of tests/vm."""
    venv = _test_venv(phases, _wheel(phases), _pythons()[0])
    part = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if part != "links":
        command: list[str | Path] = [venv.python, "-m", "soak", *arguments]
        phases.run("soak", command, env={"PYTHONPATH": str(ROOT / "tests")}, limit=SOAK_LIMIT)
    if part in (None, "links") and machine.is_possible():
        machine.soak(phases, venv, _machine_tools(phases))


def bench(phases: Phases, arguments: Sequence[str]) -> None:
    venv = Venv(".venv-bench", _pythons()[0])
    venv.ensure(phases, "test")
    benches.install_rivals(phases, venv)
    _install(phases, _wheel(phases), venv)
    benches.run(phases, venv, arguments)


def bench_compare(phases: Phases, arguments: Sequence[str]) -> None:
    if len(arguments) != 1:
        raise PhaseFailed("which commit? make bench-compare REF=main")
    system.check_toolchains()
    tools = _builders(phases)
    benches.compare(phases, lambda tree: wheels.build(phases, tools, tree=tree), _pythons()[0], arguments[0])


def bench_rdma(phases: Phases, arguments: Sequence[str]) -> None:
    """benches/rdma.py in the machine with software RoCE."""
    tools = _machine_tools(phases)
    machine.bench(phases, _test_venv(phases, _wheel(phases), _pythons()[0]), tools, arguments)


def bench_apps(phases: Phases, arguments: Sequence[str]) -> None:
    """benches/services.py: applications by TCP, unix sockets and smcfast."""
    system.setup_servers(phases)
    benches.applications(phases, _apps_venv(phases), arguments)


def count(phases: Phases, _: Sequence[str]) -> None:
    """Instructions, held to the figures that are kept."""
    system.setup(phases)
    counts.run(phases, _test_venv(phases, _wheel(phases), _pythons()[0]), update=False)


def count_update(phases: Phases, _: Sequence[str]) -> None:
    system.setup(phases)
    counts.run(phases, _test_venv(phases, _wheel(phases), _pythons()[0]), update=True)


def wheel(phases: Phases, _: Sequence[str]) -> None:
    system.setup(phases)
    wheels.build_all(phases, _builders(phases))


def clean(_: Phases, __: Sequence[str]) -> None:
    names = ["target", "dist", "build", "tests/fuzz/target", ".mypy_cache", ".ruff_cache", ".hypothesis", ".benchmarks"]
    for path in [*(ROOT / name for name in names), *ROOT.glob(".venv*")]:
        shutil.rmtree(path, ignore_errors=True)


def _pythons() -> list[Interpreter]:
    found = interpreters.find()
    if not found:
        raise PhaseFailed("no CPython 3.11 or newer with the modules venv and ensurepip (Debian: python3-venv)")
    return found


def _builders(phases: Phases) -> Venv:
    """Where maturin and zig live; who only builds, as the demo does, does not wait for the linters."""
    venv = Venv(".venv-build", _pythons()[0])
    venv.ensure(phases, "build")
    return venv


def _linters(phases: Phases) -> Venv:
    """Where ruff and mypy live."""
    venv = Venv(".venv-lint", _pythons()[0])
    venv.ensure(phases, "lint")
    return venv


def _machine_tools(phases: Phases) -> Venv:
    """Where virtme-ng lives, beside the packages that it needs."""
    system.setup_machine(phases)
    venv = Venv(".venv-vm", _pythons()[0])
    venv.ensure(phases, "vm")
    return venv


def _wheel(phases: Phases) -> Path:
    system.check_toolchains()
    return wheels.build(phases, _builders(phases))


def _install(phases: Phases, wheel: Path, venv: Venv) -> None:
    venv.install(phases, wheel)


def _test_venv(phases: Phases, wheel: Path, python: Interpreter) -> Venv:
    venv = Venv(f".venv-{python.short}", python)
    venv.ensure(phases, "test")
    _install(phases, wheel, venv)
    return venv


def _apps_venv(phases: Phases) -> Venv:
    """Where the applications live."""
    venv = Venv(".venv-apps", _pythons()[0])
    venv.ensure(phases, "apps")
    _install(phases, _wheel(phases), venv)
    return venv


def _loom() -> Check:
    """tests/loom.rs, in a build of its own: under cfg(loom) atomics are loom's, and nothing else can be tested."""
    env = {"RUSTFLAGS": "--cfg loom", "CARGO_TARGET_DIR": str(ROOT / "target" / "loom")}
    return "loom models", ["cargo", "test", "--locked", "--profile", "loom", "--test", "loom"], {"env": env}


def _halves() -> list[list[str]]:
    """The whole suite in two runs, which have about as much to do."""
    return [[f"--ignore-glob={ROOT / 'tests' / f'test_{half}*.py'}"] for half in HALVES]


def _pytest(phases: Phases, wheel: Path, wanted: Mapping[Interpreter, Sequence[Sequence[str]]]) -> None:
    """The tests on several interpreters, in one or more runs each, all at the same time: most of a test is waiting."""
    checks: list[Check] = []
    for python, runs in wanted.items():
        pytest = _test_venv(phases, wheel, python).tool("pytest")
        for number, arguments in enumerate(runs, start=1):
            name = f"pytest {python.short}" + (f", part {number}" if len(runs) > 1 else "")
            checks.append((name, [pytest, *arguments], {"limit": PYTEST_LIMIT}))
    phases.beside(*checks)


COMMANDS: dict[str, Callable[[Phases, Sequence[str]], None]] = {
    "setup": setup,
    "demo": demo,
    "test": test,
    "test-rust": test_rust,
    "test-python": test_python,
    "test-vm": test_vm,
    "test-apps": test_apps,
    "smoke": smoke,
    "loom": loom,
    "sanitize": sanitize,
    "fuzz": fuzz,
    "lint": lint,
    "format": format_,
    "soak": soak,
    "bench": bench,
    "bench-compare": bench_compare,
    "bench-rdma": bench_rdma,
    "bench-apps": bench_apps,
    "count": count,
    "count-update": count_update,
    "wheel": wheel,
    "clean": clean,
}


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in COMMANDS:
        print(f"usage: python3 .ci/dev {{{','.join(COMMANDS)}}} [ARGUMENT ...]", file=sys.stderr)
        return 2
    # A guard outside (.ci/run) ends this process alone: leave in order, so that the running phase is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    phases = Phases()
    try:
        COMMANDS[arguments[0]](phases, arguments[1:])
    except PhaseFailed as error:
        phases.failures.append(str(error))
    phases.report()
    for failure in phases.failures:
        print(f"\n{arguments[0]} FAILED: {failure}", file=sys.stderr)
    return 1 if phases.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
