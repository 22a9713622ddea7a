"""The core's own tests under AddressSanitizer, and the ring between two threads under ThreadSanitizer.

Both come with the stable toolchain, which takes their flags when it is told that it may. Its standard library is not
instrumented, which is why ThreadSanitizer runs the one test that is about memory that two threads share, and why tsan.txt
leaves out what the library hands from thread to thread. Miri would need a nightly toolchain.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from phases import ROOT, Check, capture

# For the compiler the copies are machine code; in these builds they are copies that a sanitizer sees.
PLAIN_COPY = "--cfg plain_copy"
SUPPRESSIONS = Path(__file__).with_name("tsan.txt")


def checks() -> list[Check]:
    """Both, each in a build of its own; whichever runtime is missing is named and left out."""
    flags = f"-Cunsafe-allow-abi-mismatch=sanitizer {PLAIN_COPY}"
    # Over a link both threads take locks of the standard library, whose half ThreadSanitizer does not see.
    thread = ("two_threads", "--skip=over_a_link", "--test-threads=1")
    return [*_check("address", PLAIN_COPY, ()), *_check("thread", flags, thread)]


def _check(sanitizer: str, flags: str, arguments: Sequence[str]) -> Iterator[Check]:
    host, runtimes = _runtimes()
    if not any(path.name.endswith(f"_rt.{sanitizer[0]}san.a") for path in runtimes):
        print(f"\n--- {sanitizer} sanitizer: left out, this toolchain has no runtime for it on {host}")
        return
    env = {
        "RUSTC_BOOTSTRAP": "1",
        "RUSTFLAGS": f"-Zsanitizer={sanitizer} {flags}",
        "CARGO_TARGET_DIR": str(ROOT / "target" / "sanitizers" / sanitizer),
        "TSAN_OPTIONS": f"suppressions={SUPPRESSIONS}",
    }
    # A target that is named keeps the flags from build scripts and macros.
    command = ["cargo", "test", "--locked", "--lib", "--target", host, "--", *arguments]
    yield f"{sanitizer} sanitizer", command, {"env": env}


def _runtimes() -> tuple[str, list[Path]]:
    version = capture(["rustc", "-vV"]) or ""
    host = next((line.split()[1] for line in version.splitlines() if line.startswith("host:")), "an unknown host")
    libraries = (capture(["rustc", "--print", "target-libdir"]) or "").strip()
    return host, list(Path(libraries).glob("librustc*_rt.*san.a"))
