"""The commands behind the Makefile: ``python3 .ci/dev COMMAND [ARGUMENT ...]``. Standard library only."""

import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import interpreters
import licences
import system
import wheels
from interpreters import Interpreter, Venv
from phases import ROOT, PhaseFailed, Phases, capture

PYTEST_LIMIT = 600.0  # seconds for one interpreter's suite; a single test has 30 (pyproject.toml)


def setup(phases: Phases, _: Sequence[str]) -> None:
    system.setup(phases)
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
    loom(phases, ())
    pythons = _pythons()
    for python in pythons:
        whole = python in (pythons[0], pythons[-1])
        _pytest(phases, wheel, python, [] if whole else ["-m", "smoke"])


def test_rust(phases: Phases, arguments: Sequence[str]) -> None:
    system.check_toolchains()
    if capture(["cargo", "nextest", "--version"]) is not None:
        phases.check("rust tests", ["cargo", "nextest", "run", "--locked", "--no-fail-fast", *arguments])
    else:
        phases.check("rust tests", ["cargo", "test", "--locked", "--lib", "--tests", "--no-fail-fast", *arguments])
    phases.check("rust doctests", ["cargo", "test", "--locked", "--doc", *arguments])


def loom(phases: Phases, _: Sequence[str]) -> None:
    """tests/loom.rs, in a build of its own: under cfg(loom) atomics are loom's, and nothing else can be tested."""
    env = {"RUSTFLAGS": "--cfg loom", "CARGO_TARGET_DIR": str(ROOT / "target" / "loom")}
    phases.check("loom models", ["cargo", "test", "--locked", "--profile", "loom", "--test", "loom"], env=env)


def test_python(phases: Phases, arguments: Sequence[str]) -> None:
    _pytest(phases, _wheel(phases), _pythons()[0], arguments)


def smoke(phases: Phases, _: Sequence[str]) -> None:
    wheel = _wheel(phases)
    for python in _pythons():
        _pytest(phases, wheel, python, ["-m", "smoke"])


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
    phases.check("mypy, tests", [tools.python, "-m", "mypy", "tests/support", "tests/conftest.py"])
    stubtest: list[str | Path] = [
        tools.python,
        "-m",
        "mypy.stubtest",
        "smcfast._core",
        "--mypy-config-file",
        "pyproject.toml",
    ]
    phases.check("stubtest", stubtest)
    if not (ROOT / "python" / "smcfast" / "_core.pyi").exists():  # stubtest says nothing of a stub that is not there
        phases.failures.append("python/smcfast/_core.pyi is missing")


def format_(phases: Phases, _: Sequence[str]) -> None:
    tools = _linters(phases)
    phases.run("rustfmt", ["cargo", "fmt"])
    phases.run("ruff format", [tools.tool("ruff"), "format"])
    phases.run("ruff check", [tools.tool("ruff"), "check", "--fix"])


def bench(phases: Phases, arguments: Sequence[str]) -> None:
    venv = _test_venv(phases, _wheel(phases), _pythons()[-1])
    phases.run("benchmarks", [venv.tool("pytest"), "benches", "--benchmark-only", *arguments], limit=1800)


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


def _wheel(phases: Phases) -> Path:
    system.check_toolchains()
    return wheels.build(phases, _builders(phases))


def _install(phases: Phases, wheel: Path, venv: Venv) -> None:
    venv.pip(phases, "smcfast", "--no-deps", "--no-index", "--force-reinstall", wheel)


def _test_venv(phases: Phases, wheel: Path, python: Interpreter) -> Venv:
    venv = Venv(f".venv-{python.short}", python)
    venv.ensure(phases, "test")
    _install(phases, wheel, venv)
    return venv


def _pytest(phases: Phases, wheel: Path, python: Interpreter, arguments: Sequence[str]) -> None:
    venv = _test_venv(phases, wheel, python)
    phases.check(f"pytest {python.short}", [str(venv.tool("pytest")), *arguments], limit=PYTEST_LIMIT)


COMMANDS: dict[str, Callable[[Phases, Sequence[str]], None]] = {
    "setup": setup,
    "demo": demo,
    "test": test,
    "test-rust": test_rust,
    "test-python": test_python,
    "smoke": smoke,
    "loom": loom,
    "fuzz": fuzz,
    "lint": lint,
    "format": format_,
    "bench": bench,
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
