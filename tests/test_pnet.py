"""Tables of physical networks: the file, and where it is looked for. The kernel's table is in tests/vm."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from smcfast import pnet
from smcfast.pnet import Table, WrongTable

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
# id   interface, or RDMA device with its port
NET1   eth0
net1   mlx5_0:1     # a port
OTHER  mlx5_0:2

NET1   eth0
ABCDEFGHIJKLMNOP eth0.5
"""


@pytest.fixture(autouse=True)
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pnet, "of_kernel", lambda: None)


def test_a_file() -> None:
    assert pnet.parse(TEXT.splitlines(), "pnet") == Table(
        {"eth0": "NET1", "eth0.5": "ABCDEFGHIJKLMNOP"}, {("mlx5_0", 1): "NET1", ("mlx5_0", 2): "OTHER"}
    )


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("NET1", "must be an id and an interface, or an id and DEVICE:PORT"),
        ("NET1 eth0 eth1", "must be an id and an interface"),
        ("NET-1 eth0", "'NET-1' is no id, which is 1..16 letters and digits"),
        ("ABCDEFGHIJKLMNOPQ eth0", "is no id"),
        ("NÉT eth0", "is no id"),
        ("NET1 rxe0:0", "'rxe0:0' must be DEVICE:PORT with a port of 1..255"),
        ("NET1 rxe0:256", "port of 1..255"),
        ("NET1 rxe0:", "port of 1..255"),
        ("NET1 rxe0:²", "port of 1..255"),
        ("NET1 :1", "port of 1..255"),
        ("NET2 eth0", "eth0 is on NET1 already"),
        ("NET2 rxe0:1", "rxe0:1 is on NET1 already"),
    ],
)
def test_a_wrong_line_is_named(line: str, wrong: str) -> None:
    with pytest.raises(WrongTable) as caught:
        pnet.parse(["NET1 eth0", "NET1 rxe0:1", line], "/etc/smcfast/pnet")
    assert str(caught.value).startswith("/etc/smcfast/pnet, line 3: ")
    assert wrong in str(caught.value)


def test_the_first_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setattr(pnet, "paths", lambda: [str(path) for path in paths])
    assert pnet.table() == Table()
    paths[1].write_text("NET2 eth0\n")
    assert pnet.table() == Table({"eth0": "NET2"})
    paths[0].write_text("")
    assert pnet.table() == Table()


def test_where_the_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert pnet.paths() == ["/config/smcfast/pnet", "/etc/smcfast/pnet"]
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert pnet.paths() == ["/home/somebody/.config/smcfast/pnet", "/etc/smcfast/pnet"]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smcfast" / "pnet").mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(IsADirectoryError):
        pnet.table()


def test_the_kernels_table_counts_alone_when_it_has_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smcfast").mkdir()
    (tmp_path / "smcfast" / "pnet").write_text("NET1 eth0\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(pnet, "of_kernel", lambda: Table({}, {("rxe0", 1): "NET2"}))
    assert pnet.table() == Table({}, {("rxe0", 1): "NET2"})
    monkeypatch.setattr(pnet, "of_kernel", Table)
    assert pnet.table() == Table({"eth0": "NET1"})


@pytest.mark.parametrize(
    ("text", "has"), [("SMC  \nTCP", True), ("SMC6     1\n", False), ("TCP 1\nSMC   1352\n", True)]
)
def test_a_kernel_with_smc_is_known_by_its_protocols(tmp_path: Path, text: str, has: bool) -> None:
    (tmp_path / "protocols").write_text(text)
    assert pnet.has_smc(str(tmp_path / "protocols")) == has
    assert not pnet.has_smc(str(tmp_path / "nothing"))
    assert os.path.exists("/proc/net/protocols")
