"""Builds the wheels and looks into them."""

import re
import subprocess
import zipfile
from pathlib import Path

from interpreters import Venv
from phases import ROOT, PhaseFailed, Phases, capture

DIST = ROOT / "dist"
POLICY = "manylinux_2_28"
# The C library and its parts: all that the module may ask the loader for.
_ALLOWED = ("libc.so", "ld-linux-", "libpthread.so", "libdl.so", "libm.so", "librt.so")
_TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


def build(phases: Phases, tools: Venv, target: str | None = None, tree: Path = ROOT) -> Path:
    """Build the release wheel, for this machine or for a Rust target; the file. Seconds when nothing has changed.

    zig links against an older glibc than this machine's, so that the wheel which is tested is the wheel which ships.
    Another source tree than this one gets its wheel into its own `dist`.
    """
    into = tree / "dist" / (target or "host")
    for old in into.glob("*.whl"):
        old.unlink()
    command: list[str | Path] = [tools.tool("maturin"), "build", "--release", "--zig", "--compatibility", POLICY]
    command += ["--out", into, *(["--target", target] if target else [])]
    phases.run(f"wheel {target or 'of this machine'}", command, env=tools.env, cwd=tree)
    (wheel,) = into.glob("*.whl")
    return wheel


def build_plain(phases: Phases, tools: Venv) -> Path:
    """Build what ``pip install .`` builds: from the source distribution, by this machine's own linker; the wheel."""
    into = DIST / "plain"
    for old in into.glob("*"):
        old.unlink()
    command: list[str | Path] = [tools.tool("maturin"), "build", "--release", "--sdist", "--out", into]
    phases.run("wheel from the source distribution", command, env=tools.env)
    (wheel,) = into.glob("*.whl")
    return wheel


def build_all(phases: Phases, tools: Venv) -> None:
    """Build and check a wheel for each machine whose Rust target is here; the others are named in a line."""
    wheels = [build(phases, tools)]
    here = wheels[0].stem.rpartition(POLICY + "_")[2]
    installed = (capture(["rustup", "target", "list", "--installed"]) or "").split()
    for machine, target in _TARGETS.items():
        if machine == here:
            continue
        if target in installed:
            wheels.append(build(phases, tools, target))
        else:
            print(f"no wheel for {machine}: the Rust target {target} is not installed (rustup target add {target})")
    for wheel in wheels:
        check(phases, tools, wheel)
    check_links(build_plain(phases, tools))


def check(phases: Phases, tools: Venv, wheel: Path) -> None:
    """:raises PhaseFailed: when the wheel is not what its name says, carries a library or links more than libc."""
    phases.run(f"auditwheel {wheel.name}", [tools.python, "-m", "auditwheel", "show", wheel])
    shown = capture([tools.python, "-m", "auditwheel", "show", wheel]) or ""
    tag = re.search(r'platform\s+tag:\s+"manylinux_2_(\d+)_', shown)
    honest = tag is not None and int(tag[1]) <= int(POLICY.rpartition("_")[2])
    if not honest or POLICY not in wheel.name or "-cp311-abi3-" not in wheel.name:
        raise PhaseFailed(f"{wheel.name} is not an abi3-py311 {POLICY} wheel")
    check_links(wheel)


def check_links(wheel: Path) -> None:
    """:raises PhaseFailed: when the wheel carries a library or its module asks the loader for more than libc."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        bundled = [name for name in names if ".libs/" in name]
        (module,) = (name for name in names if name.endswith(".so"))
        extracted = Path(archive.extract(module, ROOT / "target" / "audit"))
    foreign = [library for library in needed(extracted) if not library.startswith(_ALLOWED)]
    if bundled or foreign:
        raise PhaseFailed(f"{wheel.name} bundles {bundled} and links {foreign}: only libc is allowed")
    print(f"{wheel.name}: {wheel.stat().st_size} bytes, links {', '.join(needed(extracted))}")


def needed(module: Path) -> list[str]:
    """The NEEDED entries of a shared object."""
    dynamic = subprocess.run(["readelf", "-dW", module], capture_output=True, text=True, check=True).stdout
    return [line.rpartition("[")[2].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
