"""The CPythons of this machine, and a virtual environment for each."""

import functools
import glob
import hashlib
import json
import os
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from phases import ROOT, Phases, capture

OLDEST = (3, 11)
_PLACES = ("~/.pyenv/versions/*/bin", "~/.local/bin", "~/.local/share/uv/python/*/bin", "/usr/local/bin", "/usr/bin")
_PROBE = """
import json, sys, sysconfig
try:
    import ensurepip, venv
    pip = True
except ImportError:
    pip = False
print(json.dumps({
    "name": sys.implementation.name, "version": sys.version_info[:2], "full": sys.version.split()[0], "pip": pip,
    "release": sys.version_info.releaselevel == "final", "gil": not sysconfig.get_config_var("Py_GIL_DISABLED"),
    "real": sys.executable,
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A CPython that can make a virtual environment."""

    path: Path
    version: tuple[int, int]
    full: str

    @property
    def short(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"


@functools.cache
def find() -> list[Interpreter]:
    """The usable interpreters, one for each minor version from 3.11 up, oldest first. What is passed over is printed."""
    found: dict[tuple[int, int], Interpreter] = {}
    for path in _candidates():
        answer = capture([path, "-I", "-c", _PROBE], limit=20)
        if answer is None:  # a pyenv shim without that version, say
            continue
        facts = json.loads(answer)
        version: tuple[int, int] = (facts["version"][0], facts["version"][1])
        if facts["name"] != "cpython" or version < OLDEST or version in found:
            continue
        refused = [
            text
            for good, text in (
                (facts["pip"], "has no venv or ensurepip module"),
                (facts["release"], "is a pre-release"),
                (facts["gil"], "is a free-threaded build, which takes no abi3 wheel"),
            )
            if not good
        ]
        if refused:
            print(f"passed over {path} ({facts['full']}): it {refused[0]}", flush=True)
            continue
        found[version] = Interpreter(Path(facts["real"]), version, facts["full"])
    return [found[version] for version in sorted(found)]


def _candidates() -> list[Path]:
    """Files that look like a Python interpreter: PATH first, then the usual places, each file once."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    for place in _PLACES:
        folders += sorted(glob.glob(os.path.expanduser(place)), reverse=True)
    paths: dict[Path, None] = {Path(sys.executable): None}
    for folder in folders:
        for path in sorted(Path(folder or ".").glob("python3.[0-9]*")):
            if path.name.removeprefix("python3.").isdigit() and os.access(path, os.X_OK):
                paths.setdefault(path.absolute())
    return list(paths)


class Venv:
    """A virtual environment in the repository, made anew when its requirements or its interpreter change."""

    def __init__(self, name: str, base: Interpreter) -> None:
        self.path = ROOT / name
        self.python = self.path / "bin" / "python"
        self.base = base

    def ensure(self, phases: Phases, *groups: str) -> None:
        """Bring it to the state that the dependency groups ask for."""
        wanted = [requirement for group in groups for requirement in requirements(group)]
        state = hashlib.sha256(repr((str(self.base.path), self.base.full, wanted)).encode()).hexdigest()
        stamp = self.path / "made-from"
        if stamp.is_file() and stamp.read_text() == state and self.python.exists():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        phases.run(f"{self.path.name}: create", [self.base.path, "-m", "venv", self.path], limit=120)
        self.pip(phases, "requirements", *wanted)
        stamp.write_text(state)

    def pip(self, phases: Phases, what: str, *arguments: str | Path) -> None:
        """pip install, quietly."""
        command = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
        if arguments:
            phases.run(f"{self.path.name}: {what}", command)

    def install(self, phases: Phases, wheel: Path) -> None:
        """Put a wheel of this project in, in place of any other."""
        self.pip(phases, "smcfast", "--no-deps", "--no-index", "--force-reinstall", wheel)

    def tool(self, name: str) -> Path:
        return self.path / "bin" / name

    @property
    def env(self) -> dict[str, str]:
        """For tools that look for their helpers on PATH."""
        return {"PATH": f"{self.path / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}


def requirements(group: str) -> list[str]:
    """The requirements of a dependency group of pyproject.toml, included groups followed."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        groups = tomllib.load(file)["dependency-groups"]
    flat: list[str] = []
    for entry in groups[group]:
        flat += [entry] if isinstance(entry, str) else requirements(entry["include-group"])
    return flat
