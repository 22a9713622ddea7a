"""What libibverbs shows to tools. Where there is a device, tests/verbs_rxe.rs compares it with what pyverbs sees."""

import errno
import os
import subprocess
import sys

import pytest

from smcfast import _core

UVERBS = "/sys/class/infiniband_verbs"

LOOK = """
import resource, sys
from smcfast import _core
if sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (32768, 32768))
try:
    print(_core.rdma_devices())
except OSError as error:
    print(error.errno, error.strerror)
"""


def has_devices() -> bool:
    return os.path.isdir(UVERBS) and any(name.startswith("uverbs") for name in os.listdir(UVERBS))


@pytest.mark.skipif(has_devices(), reason="this machine has RDMA devices")
def test_no_device_is_a_reason() -> None:
    with pytest.raises(OSError, match="RDMA: this host has no device") as raised:
        _core.rdma_devices()
    assert raised.value.errno == errno.ENODEV


@pytest.mark.skipif(not has_devices(), reason="this machine has no RDMA devices")
def test_devices_have_their_ports_and_addresses() -> None:
    found = _core.rdma_devices()
    assert "libibverbs.so.1" in found["library"]
    for device in found["devices"]:
        for port in device.get("ports", ()):
            assert os.path.isdir(f"/sys/class/infiniband/{device['name']}/ports/{port['number']}")
            for gid in port["gids"]:
                path = f"/sys/class/infiniband/{device['name']}/ports/{port['number']}/gids/{gid['index']}"
                with open(path, encoding="ascii") as file:
                    assert bytes.fromhex(file.read().replace(":", "")) == gid["gid"]


@pytest.mark.parametrize("limits", [(), ("low",)], ids=["any limit", "little locked memory"])
def test_nothing_is_printed_whatever_is_missing(limits: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", LOOK, *limits], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.startswith("{'library'") or "RDMA: " in done.stdout
    assert done.stderr == ""


def test_the_library_is_not_loaded_with_the_module() -> None:
    look = "from smcfast import _core; print('libibverbs' in open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "False\n"
