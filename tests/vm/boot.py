"""Boots the machine with software RoCE and the kernel's SMC, and runs a command in it: ``boot.py --out DIR -- COMMAND ...``.

The machine has this machine's files, read-only under a throw-away layer; only what is written to DIR stays. The command
runs as root with the two hosts of ``hosts.sh`` laid out. What it writes is passed on while it runs, and its exit status is
this program's. Whatever else ends the machine is an error with a reason: it does not boot, it panics, it hangs, the command
leaves no status or not the files that were expected.

Needs vng of virtme-ng on PATH. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODULES = ("kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko", "kernel/net/smc/smc.ko", "kernel/net/smc/smc_diag.ko")
BOOT_LIMIT = 240.0  # seconds until the two hosts are there; about 20 when nothing else runs
GRACE = 60.0  # seconds beyond the command's own limit, which the machine itself enforces
LOOK = 0.1  # seconds between two looks at what the machine has written
CONSOLE_LINES = 40
# Emulated, what hardware does in passing takes time: nobody attacks this machine. An oops ends it rather than go unnoticed.
KERNEL_OPTIONS = "mitigations=off init_on_alloc=0 nokaslr apparmor=0 audit=0 no5lvl oops=panic"
# Without the wide vectors, which cost more than they save where each is a function call; with a source of randomness, for
# which programs would wait.
EMULATED_CPU = "Westmere,+rdrand"
# Drivers for hardware that the emulator has and nobody here needs: finding and starting them is half of an emulated boot.
UNUSED = (
    "ahci libata scsi_mod sr_mod cdrom sg floppy iTCO_wdt iTCO_vendor_support i6300esb lpc_ich i2c_i801 i2c_smbus psmouse "
    "serio_raw evdev pcspkr button kvm_amd kvm powernow_k8 acpi_cpufreq edac_mce_amd ccp aesni_intel cryptd sha1_ssse3 "
    "sha256_ssse3 sha512_ssse3 ghash_clmulni_intel polyval_clmulni qemu_fw_cfg rapl joydev watchdog drm bochs"
)


class MachineError(Exception):
    """There is no result: why."""


def kernel(modules: Path = Path("/lib/modules"), boot: Path = Path("/boot")) -> str:
    """The newest installed kernel that has software RoCE and SMC.

    :raises MachineError: there is none.
    """
    found = [
        folder.name
        for folder in modules.glob("*")
        if os.access(boot / f"vmlinuz-{folder.name}", os.R_OK)
        and all(any(folder.glob(f"{module}*")) for module in MODULES)
    ]
    if not found:
        raise MachineError(
            f"no kernel in {modules} has rdma_rxe, smc and smc_diag and a readable image in {boot}: "
            "make setup installs one (linux-image-6.12-amd64)"
        )
    return max(found, key=_version)


def _version(name: str) -> tuple[list[int], str]:
    numbers = name.partition("-")[0].partition("+")[0].split(".")
    return [int(number) if number.isdigit() else 0 for number in numbers], name


def is_accelerated() -> bool:
    """Can this machine run another in hardware? Elsewhere /dev/kvm may be there and carry no ordinary kernel."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return ("vmx" in flags or "svm" in flags) and os.access("/dev/kvm", os.R_OK | os.W_OK)


def trees(program: str) -> list[Path]:
    """The folders that the command reads from: the repository, the system's and, elsewhere, its interpreter's."""
    found = [Path("/usr"), ROOT]
    prefix = Path(program).resolve().parents[1] if "/" in program else Path("/usr")
    if not any(prefix.is_relative_to(tree) for tree in found):
        found.append(prefix)
    return found


class Machine:
    """One boot."""

    def __init__(self, out: Path, *, cables: int, mtu: int, limit: float, settings: Sequence[str]) -> None:
        """Empty the folder `out`.

        :param limit: seconds for the command.
        :param settings: of its environment, as ``NAME=VALUE``.
        """
        self.out = out.resolve()
        self._cables, self._mtu, self._limit = cables, mtu, limit
        self._settings = [*settings, f"TEST_VM_OUT={self.out}", "PYTHONUNBUFFERED=1"]
        self._passed_on = 0
        if self.out.exists():
            shutil.rmtree(self.out)
        self.out.mkdir(parents=True)

    def run(self, words: Sequence[str]) -> int:
        """Run the command and pass on what it writes; its exit status.

        :raises MachineError: the machine has ended without one, or was ended.
        """
        self._order(words)
        begun = time.monotonic()
        with self._booted() as vng:
            self._wait(vng, "ready", BOOT_LIMIT, "the machine has not booted")
            ready = time.monotonic()
            _say(f"booted in {ready - begun:.1f} s")
            self._wait(vng, "status", self._limit + GRACE, "the command, and the machine with it, hangs")
            _say(f"the command took {time.monotonic() - ready:.1f} s")
        status = int((self.out / "status").read_text())
        if not (self.out / "ready").exists():
            raise MachineError(f"the two hosts could not be laid out (status {status})")
        if status in (124, 137):
            raise MachineError(f"the command was stopped after {self._limit:.0f} s")
        return status

    def _order(self, words: Sequence[str]) -> None:
        """What guest.sh reads: assignments of bash."""
        folders = " ".join(shlex.quote(str(tree)) for tree in trees(words[0]))
        (self.out / "order").write_text(
            f"trees=({folders})\ncables={self._cables}\nmtu={self._mtu}\nseconds={self._limit:.0f}\n"
            f"settings=({shlex.join(self._settings)})\nwords=({shlex.join(words)})\n",
        )

    @contextlib.contextmanager
    def _booted(self) -> Iterator[subprocess.Popen[bytes]]:
        """The process that runs the machine, which does not outlive the block."""
        share = "local,path=/,mount_tag=cached,security_model=none,readonly=on,multidevs=remap"
        command = ["vng", "--run", kernel(), "--cpus", "2", "--memory", "2G", "--user", "root"]
        command += [] if is_accelerated() else ["--disable-kvm"]
        options = f"{KERNEL_OPTIONS} modprobe.blacklist={','.join(UNUSED.split())}"
        command += ["--append", options, f"--rwdir={self.out}", "--cwd", str(ROOT)]
        cpu = "" if is_accelerated() else f"-cpu {EMULATED_CPU}"
        command += [f"--qemu-opts=-virtfs {share} -pidfile {self.out / 'qemu.pid'} {cpu}"]
        command += ["--", shlex.join([str(HERE / "guest.sh"), str(self.out)])]
        with (self.out / "console.log").open("wb") as console:
            vng = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT)
        try:
            yield vng
            vng.wait(GRACE)
        except subprocess.TimeoutExpired:
            raise MachineError("the machine does not shut down") from None
        finally:
            self._end(vng)

    def _end(self, vng: subprocess.Popen[bytes]) -> None:
        """By killing the emulator; the programs that have started it end by themselves."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            if vng.poll() is None:
                os.kill(int((self.out / "qemu.pid").read_text()), signal.SIGKILL)
        try:
            vng.wait(10)
        except subprocess.TimeoutExpired:
            vng.kill()
            vng.wait()

    def _wait(self, vng: subprocess.Popen[bytes], name: str, limit: float, fault: str) -> None:
        """Wait for the file `name`, or for the status, and pass on what is written meanwhile.

        :raises MachineError: the machine ends without it, or the time is over.
        """
        deadline = time.monotonic() + limit
        while not any((self.out / each).exists() for each in (name, "status")):
            self._pass_on()
            ended = vng.poll() is not None
            if ended and not (self.out / "status").exists():
                raise MachineError(f"the machine has ended without a result\n{self._console()}")
            if time.monotonic() > deadline:
                raise MachineError(f"{fault} after {limit:.0f} s\n{self._console()}")
            time.sleep(LOOK)
        self._pass_on()

    def _pass_on(self) -> None:
        with contextlib.suppress(FileNotFoundError), (self.out / "output.log").open("rb") as output:
            output.seek(self._passed_on)
            text = output.read()
            self._passed_on += len(text)
            sys.stdout.write(text.decode(errors="replace"))
            sys.stdout.flush()

    def _console(self) -> str:
        lines = (self.out / "console.log").read_text(errors="replace").splitlines()
        return "\n".join(["the last lines of its console:", *lines[-CONSOLE_LINES:]])


def _say(text: str) -> None:
    print(f"[machine] {text}", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run a command in the machine with software RoCE.")
    parser.add_argument("--out", type=Path, required=True, help="folder for logs and results; emptied first")
    parser.add_argument("--expect", action="append", default=[], metavar="FILE", help="must be in DIR in the end")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the command")
    parser.add_argument("--cables", type=int, default=1, help="between the two hosts")
    parser.add_argument("--mtu", type=int, default=1500, help="bytes")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the command")
    parser.add_argument("words", nargs="+", metavar="COMMAND")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    try:
        machine = Machine(
            options.out, cables=options.cables, mtu=options.mtu, limit=options.limit, settings=options.env
        )
        status = machine.run(options.words)
        missing = [name for name in options.expect if not (machine.out / name).is_file()]
        if missing:
            raise MachineError(f"the command has not written {', '.join(missing)}")
    except MachineError as error:
        print(f"[machine] FAILED: {error}", file=sys.stderr, flush=True)
        return 1
    return status


def _leave(*_: object) -> NoReturn:
    sys.exit("ended from outside")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
