"""What the machine must have besides the repository."""

import os
import shutil

from phases import ROOT, PhaseFailed, Phases, capture

# Program looked for, Debian package that has it, what it is for.
_PROGRAMS = (
    ("cc", "gcc", "links build scripts"),
    ("c++", "g++", "builds the fuzzer's engine"),
    ("git", "git", "the repository itself"),
    ("readelf", "binutils", "looks into the built module"),
    ("tshark", "tshark", "an independent dissector for the wire tests"),
)
# The same, for what goes on without it and says so.
_OPTIONAL = (
    ("valgrind", "valgrind", "counts instructions, for make count"),
    ("clang", "clang", "compiles the BPF program, to compare it with the one in the repository"),
    ("llvm-strip", "llvm", "the same"),
    ("ip", "iproute2", "makes networks for tests"),
    ("nft", "nftables", "filters packets for tests"),
)

# What boots the machine with software RoCE, and what is used inside.
_MACHINE = [
    "qemu-system-x86",
    "linux-image-6.12-amd64",
    "busybox-static",
    "kmod",
    "xz-utils",
    "iproute2",
    "rdma-core",
    "ibverbs-utils",
    "ibverbs-providers",
    "perftest",
    "tcpdump",
    "python3-pyverbs",
]

# The servers of the tests with applications; those run servers of their own, wherever Debian puts the programs.
_SERVERS = ["redis-server", "postgresql"]


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
    optional = [package for program, package, _ in _OPTIONAL if shutil.which(program) is None]
    may_install = os.geteuid() == 0 and shutil.which("apt-get") is not None
    if not may_install:
        for package in optional:
            print(f"not installed, and done without: {package}")
    elif optional or missing:
        _install(phases, missing, optional)
    if missing and not may_install:
        reasons = "\n".join(f"  {package}: {why}" for _, package, why in _PROGRAMS if package in missing)
        raise PhaseFailed(
            f"missing system packages: {' '.join(missing)}\n{reasons}\n"
            f"On Debian or Ubuntu: sudo apt-get install {' '.join(missing)}"
        )


def setup_machine(phases: Phases) -> None:
    """Install what the machine with software RoCE needs, or name it.

    :raises PhaseFailed: a package is missing and this is not root on Debian.
    """
    _ensure(phases, _MACHINE, "the machine for the RDMA tests")


def setup_servers(phases: Phases) -> None:
    """Install the servers that the tests with applications start, or name them.

    :raises PhaseFailed: a package is missing and this is not root on Debian.
    """
    _ensure(phases, _SERVERS, "the tests with applications")


def _ensure(phases: Phases, packages: list[str], what: str) -> None:
    listed = capture(["dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Package}\\n"]) or ""
    there = {line.split()[1] for line in listed.splitlines() if line.startswith("ii ")}
    missing = [package for package in packages if package not in there]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise PhaseFailed(f"packages of Debian that are missing for {what}: {' '.join(missing)}")
    _apt_get(phases, missing)


def _install(phases: Phases, missing: list[str], optional: list[str]) -> None:
    """By apt-get; an optional package that cannot be had is only named."""
    if missing:
        _apt_get(phases, missing)
    try:
        if optional:
            _apt_get(phases, optional)
    except PhaseFailed as error:
        print(f"done without {' '.join(optional)}: {error}")


def _apt_get(phases: Phases, packages: list[str]) -> None:
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    phases.run("apt-get update", ["apt-get", "update", "-qq"], env=quiet)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    phases.run("apt-get install", install, env=quiet, cwd=ROOT)
