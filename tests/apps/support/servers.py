"""Redis and PostgreSQL as processes of one's own: a free port, a folder of their own, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.addresses import refusing
from support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOST = "127.0.0.1"
LIMIT = 60.0 * PATIENCE  # seconds for a start and for an end


@dataclass(frozen=True)
class Server:
    """A running one: where it listens."""

    host: str
    port: int
    unix: str
    """The path of its unix socket."""
    version: str


@contextlib.contextmanager
def redis() -> Iterator[Server]:
    """A Redis that keeps nothing."""
    program = _program("redis-server")
    version = _said(program, "--version").split("v=")[1].split()[0]
    with _folder(os.geteuid()) as folder, refusing(HOST) as port:
        path = f"{folder}/redis.sock"
        words = [program, "--bind", HOST, "--port", str(port), "--unixsocket", path, "--save", "", "--dir", folder]
        with _running(words, "Ready to accept connections", os.geteuid(), signal.SIGTERM):
            yield Server(HOST, port, path, version)


@contextlib.contextmanager
def postgres() -> Iterator[Server]:
    """A PostgreSQL with the superuser "postgres", who needs no password; as root it runs as another user, as it must."""
    uid = os.geteuid() or _service_user()
    initdb, program = _program("initdb"), _program("postgres")
    version = _said(program, "--version").split()[2]
    with _folder(uid) as folder, refusing(HOST) as port:
        data = f"{folder}/data"
        words = [initdb, "--pgdata", data, "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]
        subprocess.run(
            [*words, "--no-sync"], check=True, capture_output=True, timeout=LIMIT, cwd=folder, **_as_user(uid)
        )
        settings = {"listen_addresses": HOST, "unix_socket_directories": folder, "fsync": "off"}
        words = [program, "-D", data, "-p", str(port), *(f"--{name}={value}" for name, value in settings.items())]
        with _running(words, "database system is ready to accept connections", uid, signal.SIGINT):
            yield Server(HOST, port, f"{folder}/.s.PGSQL.{port}", version)


def _program(name: str) -> str:
    """Where it is: on PATH, or where Debian keeps those of PostgreSQL, the newest version."""
    found = shutil.which(name)
    if found is None:
        versions = sorted(Path("/usr/lib/postgresql").glob("*"), key=lambda path: float(path.name))
        places = [version / "bin" / name for version in versions]
        found = next((str(place) for place in reversed(places) if place.exists()), None)
    assert found is not None, f"no {name}: make test-apps installs it"
    return found


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT).stdout


def _service_user() -> int:
    """Somebody who is not root."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise AssertionError("PostgreSQL does not run as root, and there is no other user")


def _as_user(uid: int) -> dict[str, Any]:
    """How subprocess starts a program as that user."""
    return {} if uid == os.geteuid() else {"user": uid, "group": pwd.getpwuid(uid).pw_gid, "extra_groups": []}


@contextlib.contextmanager
def _folder(uid: int) -> Iterator[str]:
    """A temporary folder of that user."""
    with tempfile.TemporaryDirectory(prefix="smcfast-apps-") as folder:
        os.chown(folder, uid, -1)
        yield folder


@contextlib.contextmanager
def _running(words: Sequence[str], ready: str, uid: int, end: signal.Signals) -> Iterator[None]:
    """A server from when it says that it is ready until it has ended by the signal `end`."""
    is_ready, lines = threading.Event(), list[str]()
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(words, cwd="/", start_new_session=True, **options, **_as_user(uid)) as process:  # type: ignore[call-overload]

        def listen() -> None:
            for line in process.stdout:
                lines.append(line)
                if ready in line:
                    is_ready.set()
            is_ready.set()  # or never will be

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            assert is_ready.wait(LIMIT), "".join(lines)
            assert ready in "".join(lines), "".join(lines)
            yield
        finally:
            process.send_signal(end)
            try:
                process.wait(LIMIT)
            finally:
                process.kill()
                listener.join()
