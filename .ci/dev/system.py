"""What the machine must have besides the repository."""

import os
import shutil

from phases import ROOT, PhaseFailed, Phases

# Program looked for, Debian package that has it, what it is for.
_PROGRAMS = (
    ("cc", "gcc", "links build scripts"),
    ("c++", "g++", "builds the fuzzer's engine"),
    ("git", "git", "the repository itself"),
    ("readelf", "binutils", "looks into the built module"),
    ("tshark", "tshark", "an independent dissector for the wire tests"),
)


def check_toolchains() -> None:
    """:raises PhaseFailed: when Rust is missing; it comes from rustup, and nothing here installs it."""
    if shutil.which("cargo") is None:
        raise PhaseFailed("cargo is not on PATH: install the stable Rust toolchain with rustup (https://rustup.rs)")


def setup(phases: Phases) -> None:
    """Install the missing system packages, or name them.

    :raises PhaseFailed: when one is missing and this is not root on Debian.
    """
    check_toolchains()
    missing = [package for program, package, _ in _PROGRAMS if shutil.which(program) is None]
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        missing.append("python3-venv")
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        reasons = "\n".join(f"  {package}: {why}" for _, package, why in _PROGRAMS if package in missing)
        raise PhaseFailed(
            f"missing system packages: {' '.join(missing)}\n{reasons}\n"
            f"On Debian or Ubuntu: sudo apt-get install {' '.join(missing)}"
        )
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    phases.run("apt-get update", ["apt-get", "update", "-qq"], env=quiet)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    phases.run("apt-get install", install, env=quiet, cwd=ROOT)
