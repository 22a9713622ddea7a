"""The raw verbs, without SMC: the programs of the package perftest between the two hosts."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from typing import TYPE_CHECKING, Final

from vm.support.hosts import A, B

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT: Final = 120.0  # seconds for one measurement
_LISTENING: Final = b"Waiting for client to connect"


def round_trip_us(*, size: int = 64, count: int = 500) -> float:
    """The median round trip of RDMA WRITEs of `size` bytes, microseconds; ib_write_lat tells half of it."""
    fields = _measure("ib_write_lat", "-s", str(size), "-n", str(count))
    return 2 * float(fields[4])  # bytes, iterations, least, most, typical, ...


def rate_mb_s(*, size: int = 65536, count: int = 200) -> float:
    """The rate of RDMA WRITEs of `size` bytes, 10^6 bytes a second."""
    fields = _measure("ib_write_bw", "-s", str(size), "-n", str(count))
    return float(fields[3]) * (1 << 20) / 1e6  # bytes, iterations, peak, average in MiB/s, ...


def _measure(program: str, *options: str) -> list[str]:
    """The figures of the only row that the client writes.

    :raises AssertionError: one of the ends fails.
    """
    common = [program, "-F", "-i", "1", *options]
    with _listening([*common, "-d", B.device, "-x", _index(B.device)]):
        client = [*common, "-d", A.device, "-x", _index(A.device), B.address]
        done = subprocess.run(client, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    size = options[1]
    rows = [line.split() for line in done.stdout.splitlines()]
    (row,) = (row for row in rows if row and row[0] == size and len(row) >= 5)
    return row


@contextlib.contextmanager
def _listening(command: list[str]) -> Iterator[None]:
    """A server that serves one client and has ended well when the block is left."""
    server = subprocess.Popen(["stdbuf", "-oL", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert server.stdout is not None
    said = b""
    try:
        while _LISTENING not in said:
            assert select.select([server.stdout], [], [], LIMIT)[0], f"the server hangs: {said.decode()}"
            more = os.read(server.stdout.fileno(), 4096)
            assert more, said.decode()
            said += more
        yield
        said += server.communicate(timeout=LIMIT)[0]
        assert server.returncode == 0, said.decode()
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def _index(device: str) -> str:
    """The number of the GID of the device's IPv4 address."""
    folder = f"/sys/class/infiniband/{device}/ports/1/gids"
    gid = A.gid if device == A.device else B.gid
    for number in range(16):
        with open(f"{folder}/{number}") as file:
            if file.read().strip() == gid:
                return str(number)
    raise AssertionError(f"{device} has no GID {gid}")
