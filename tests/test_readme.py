"""The README's examples do what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.addresses import refusing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLE, SERVER, CLIENT, FORBID = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def port() -> Iterator[int]:
    """A port that stays free for a server: the number in the text may be taken here."""
    with refusing("127.0.0.1") as free:
        yield free


def on(port: int, program: str) -> str:
    assert "8000" in program
    return program.replace("8000", str(port))


@pytest.mark.smoke
def test_the_example_runs(run_python: Run, port: int) -> None:
    done = run_python("-W", "error", "-c", on(port, EXAMPLE))
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert said[0] == "b'HELLO\\n'"
    assert "smc-d" in said[1]


def test_the_two_programs_run(run_python: Run, port: int) -> None:
    ready = on(port, SERVER).replace("await server.serve_forever()", "print(flush=True); await server.serve_forever()")
    assert ready.count("print") == 1
    with subprocess.Popen([sys.executable, "-c", ready], stdout=subprocess.PIPE) as server:
        guard = threading.Timer(30, server.kill)
        guard.start()
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"\n"
            done = run_python("-W", "error", "-c", on(port, CLIENT))
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.splitlines() == ["path: smc-d", "b'ONE\\n'", "b'TWO\\n'"]
            done = run_python("-c", on(port, CLIENT), env={"SMCFAST_PATHS": "", "SMCFAST_LOG": "info"})
            assert done.stdout.splitlines()[0] == "path: tcp"
            assert "(disabled, 0x0A000002)" in done.stderr
        finally:
            guard.cancel()
            server.kill()


def test_forbidding_tcp(run_python: Run, port: int) -> None:
    """There is nobody, or a plain server: no stream in either case."""
    lines = "".join(f"        {line}\n" for line in on(port, FORBID).splitlines())
    program = f"""import asyncio, smcfast
async def main():
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", {port}):
{lines}
asyncio.run(main())
"""
    done = run_python("-c", program)
    assert "SmcFallbackError" in done.stderr
    assert "peer_plain" in done.stderr


def test_what_the_text_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    wheels = (ROOT / ".ci" / "dev" / "wheels.py").read_text()
    assert "dist/host" in README
    assert '"host"' in wheels
