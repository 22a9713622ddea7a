"""The program that boots the machine of tests/vm, with an emulator that does what a test wants: it is never silent."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vm import boot

if TYPE_CHECKING:
    from collections.abc import Callable

    Vng = Callable[[str], None]

BOOTED = "touch ready; echo said >output.log; touch junit.xml"


@pytest.fixture
def vng(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vng:
    """``vng(script)``: what stands in for the emulator, run in the folder of results."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(boot, "kernel", lambda: "6.12")

    def write(script: str) -> None:
        path = tmp_path / "vng"
        path.write_text(f'#!/bin/sh\nfor word; do case $word in --rwdir=*) cd "${{word#*=}}";; esac; done\n{script}\n')
        path.chmod(0o755)

    return write


def run(tmp_path: Path, *options: str) -> int:
    return boot.main(["--out", str(tmp_path / "out"), "--expect", "junit.xml", *options, "--", "true"])


def test_the_command_s_output_and_status_are_passed_on(
    vng: Vng, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    vng(f"{BOOTED}; echo 0 >status")
    assert run(tmp_path) == 0
    assert "said\n" in capfd.readouterr().out
    vng(f"{BOOTED}; echo 3 >status")
    assert run(tmp_path) == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo Kernel panic", "without a result(.|\n)*Kernel panic"),
        (f"{BOOTED}; echo Oops", "without a result(.|\n)*Oops"),
        ("exit 7", "without a result"),
        (f"{BOOTED}; rm ready; echo 0 >status", "could not be laid out"),
        (f"{BOOTED}; rm junit.xml; echo 0 >status", "has not written junit.xml"),
        (f"{BOOTED}; echo 124 >status", "was stopped after 600 s"),
        (f"{BOOTED}; echo 137 >status", "was stopped after 600 s"),
    ],
)
def test_no_result_is_an_error(
    vng: Vng, tmp_path: Path, capfd: pytest.CaptureFixture[str], script: str, said: str
) -> None:
    vng(script)
    assert run(tmp_path) == 1
    found = capfd.readouterr().err
    assert found.startswith("[machine] FAILED: ")
    assert re.search(said, found)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "has not booted after 0 s"),
        (BOOTED, "hangs after 0 s"),
        (f"{BOOTED}; echo 0 >status", "does not shut down"),
    ],
)
def test_a_machine_that_hangs_is_ended(
    vng: Vng,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    script: str,
    said: str,
) -> None:
    vng(f"echo $$ >qemu.pid; {script}\nexec sleep 600")
    monkeypatch.setattr(boot, "BOOT_LIMIT", 0.2 if script == "" else 60.0)
    monkeypatch.setattr(boot, "GRACE", 0.2)
    assert run(tmp_path, "--limit", "0") == 1
    assert said in capfd.readouterr().err
    assert has_ended(int((tmp_path / "out" / "qemu.pid").read_text()))


def test_who_is_ended_from_outside_ends_the_machine(vng: Vng, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "told")
    vng(f"echo $$ >qemu.pid; echo hello >{tmp_path}/told; exec sleep 600")
    program = "import sys; from vm import boot; boot.kernel = lambda: '6.12'; sys.exit(boot.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "--out", str(tmp_path / "out"), "--", "true"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert (tmp_path / "told").read_text() == "hello\n"
        process.send_signal(signal.SIGTERM)
        assert "ended from outside" in process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert has_ended(int((tmp_path / "out" / "qemu.pid").read_text()))


def has_ended(pid: int) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return select.select([fd], [], [], 10)[0] == [fd]
    finally:
        os.close(fd)


def test_the_newest_kernel_that_has_what_is_needed(tmp_path: Path) -> None:
    modules, images = tmp_path / "modules", tmp_path / "boot"
    images.mkdir()
    for name in ("6.9.1-amd64", "6.12.9+deb12-amd64", "6.12.10+deb12-amd64", "6.13.0-without", "7.0.0-no-image"):
        for module in boot.MODULES if "without" not in name else ():
            path = modules / name / f"{module}.xz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        if "no-image" not in name:
            (images / f"vmlinuz-{name}").touch()
    assert boot.kernel(modules, images) == "6.12.10+deb12-amd64"


def test_without_a_kernel_it_says_which_package(tmp_path: Path) -> None:
    with pytest.raises(boot.MachineError, match="make setup installs one"):
        boot.kernel(tmp_path, tmp_path)


def test_the_interpreter_s_files_are_cached_as_well(tmp_path: Path) -> None:
    program = tmp_path / "python" / "bin" / "python3"
    program.parent.mkdir(parents=True)
    program.touch()
    assert tmp_path / "python" in boot.trees(str(program))
    assert boot.trees("bash") == [Path("/usr"), boot.ROOT]


def test_tests_that_need_the_machine_are_not_run_elsewhere() -> None:
    env = {key: value for key, value in os.environ.items() if key not in ("TEST_VM_OUT", "TEST_RDMA_HERE")}
    command = [sys.executable, "-m", "pytest", "-q", "tests/vm/test_kernel.py"]
    done = subprocess.run(command, cwd=boot.ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "make test-vm" in done.stderr
