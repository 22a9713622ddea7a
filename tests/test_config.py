"""Configuration: where a value comes from, what is refused and in which words."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig, SmcConfigError, config, patterns

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in dataclasses.fields(SmcConfig):
        monkeypatch.delenv(f"SMCFAST_{name.name.upper()}", raising=False)


def test_defaults() -> None:
    assert SmcConfig() == SmcConfig(
        fallback="allow",
        paths=("smc-d", "smc-r"),
        discovery=("rendezvous", "option"),
        assume=(),
        rmb_size=1 << 20,
        spin_us=50,
        preallocate=False,
        rendezvous_dir=None,
        allow_uids=(),
        handshake_timeout=6.0,
        max_pending_handshakes=1024,
        ueids=(),
        device=None,
        gid_index=None,
        max_links=1,
        testlink_s=30.0,
        rocev2_in_v1=False,
    )


VARIABLES = [
    ("FALLBACK", "forbid", "forbid"),
    ("PATHS", "smc-d, kernel", ("smc-d", "kernel")),
    ("PATHS", "", ()),
    ("DISCOVERY", "rendezvous", ("rendezvous",)),
    ("ASSUME", "10.0.0.0/8:5000,[::1]:*", ("10.0.0.0/8:5000", "[::1]:*")),
    ("RMB_SIZE", "65536", 65536),
    ("RMB_SIZE", "64k", 65536),
    ("RMB_SIZE", "2M", 2 << 20),
    ("SPIN_US", "0", 0),
    ("PREALLOCATE", "1", True),
    ("PREALLOCATE", "true", True),
    ("PREALLOCATE", "False", False),
    ("FALLBACK", "", "allow"),
    ("FALLBACK", " warn ", "warn"),
    ("DISCOVERY", " ", ()),
    ("RMB_SIZE", "", 1 << 20),
    ("SPIN_US", " ", 50),
    ("HANDSHAKE_TIMEOUT", "", 6.0),
    ("DEVICE", "", None),
    ("DEVICE", " rxe0", "rxe0"),
    ("DEVICE", "mlx5_0:1", "mlx5_0:1"),
    ("GID_INDEX", "3", 3),
    ("GID_INDEX", "", None),
    ("MAX_LINKS", "2", 2),
    ("TESTLINK_S", "0", 0.0),
    ("TESTLINK_S", "2.5", 2.5),
    ("ROCEV2_IN_V1", "1", True),
    ("RENDEZVOUS_DIR", "", None),
    ("RENDEZVOUS_DIR", "/run/smcfast", "/run/smcfast"),
    ("ALLOW_UIDS", "0,1000", (0, 1000)),
    ("HANDSHAKE_TIMEOUT", "2.5", 2.5),
    ("MAX_PENDING_HANDSHAKES", "7", 7),
    ("UEIDS", "MY.ID,OTHER", ("MY.ID", "OTHER")),
]


@pytest.mark.parametrize(("name", "text", "value"), VARIABLES)
def test_a_variable_beats_the_default(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any) -> None:
    monkeypatch.setenv(f"SMCFAST_{name}", text)
    assert getattr(SmcConfig(), name.lower()) == value


def test_a_field_beats_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMCFAST_FALLBACK", "forbid")
    monkeypatch.setenv("SMCFAST_RMB_SIZE", "no size at all")
    assert SmcConfig(fallback="allow", rmb_size=16384).fallback == "allow"


def test_every_field_has_a_variable() -> None:
    tested = {name.lower() for name, _, _ in VARIABLES}
    assert tested == {field.name for field in dataclasses.fields(SmcConfig)}


REFUSED: list[tuple[str, Any, str]] = [
    ("fallback", "never", "one of allow, warn, forbid"),
    ("paths", ("smc-d", "carrier-pigeon"), "a sequence of smc-d, smc-r, kernel"),
    ("paths", ("smc-d", "smc-d"), "at most once"),
    ("paths", "smc-d", "or empty for TCP alone; write a tuple: ('smc-d',)"),
    ("paths", "smc-d,kernel", "; write a tuple: ('smc-d', 'kernel')"),
    ("paths", "", "; write a tuple: ()"),
    ("paths", ("tcp",), "or empty for TCP alone"),
    ("paths", b"smc-d", "a sequence of smc-d"),
    ("paths", ("smc-d", []), "a sequence"),
    (
        "discovery",
        ("dns",),
        "rendezvous, option, each at most once, or empty for assumed peers alone",
    ),
    ("assume", ("nowhere",), "no port"),
    ("assume", ("::1:80",), "brackets"),
    ("assume", (7,), "a sequence of strings host:port"),
    ("assume", (b"*:1",), "b'*:1' is no string"),
    ("assume", "h:1", "; write a tuple: ('h:1',)"),
    ("assume", 7, "a sequence of strings host:port"),
    ("rmb_size", 16383, "16384..536870912 bytes"),
    ("rmb_size", 1 << 30, "16384..536870912 bytes"),
    ("rmb_size", 100_000, "a power of two"),
    ("rmb_size", True, "16384..536870912 bytes"),
    ("rmb_size", "1M", "an int, a power of two, 16384..536870912 bytes"),
    ("rmb_size", 65536.0, "an int"),
    ("spin_us", -1, "0..10000 microseconds"),
    ("spin_us", 10_001, "0..10000 microseconds"),
    ("preallocate", 2, "True or False, or 1 or 0"),
    ("preallocate", "1", "True or False, or 1 or 0"),
    ("allow_uids", (-1,), "a sequence of ints, each 0..4294967294 (user ids)"),
    ("allow_uids", ("root",), "a sequence of ints, each 0..4294967294 (user ids)"),
    ("allow_uids", 0, "a sequence"),
    ("allow_uids", "1000", "; write a tuple: (1000,)"),
    ("allow_uids", "root", "a sequence of ints"),
    ("handshake_timeout", 0, "0.1..3600 seconds"),
    ("handshake_timeout", float("nan"), "0.1..3600 seconds"),
    ("handshake_timeout", float("inf"), "0.1..3600 seconds"),
    ("max_pending_handshakes", 0, "1..65536 handshakes"),
    ("ueids", tuple(f"ID{n}" for n in range(9)), "at most 8"),
    ("ueids", ("lower",), "A-Z 0-9"),
    ("ueids", ("A" * 33,), "1..32 characters"),
    ("ueids", (".A",), "a letter or a digit first"),
    ("rendezvous_dir", "shared", "None or the absolute path of a directory"),
    ("rendezvous_dir", "/a\0b", "None or the absolute path of a directory"),
    ("rendezvous_dir", PurePath("shared"), "None or the absolute path of a directory"),
    ("rendezvous_dir", b"/tmp", "None or the absolute path of a directory"),
    ("device", "rxe 0", "None or the name of an RDMA device, as rxe0 or mlx5_0:1"),
    ("device", "rxe0:0", "None or the name of an RDMA device"),
    ("device", "rxe0:", "None or the name of an RDMA device"),
    ("device", "a" * 64, "None or the name of an RDMA device"),
    ("device", 0, "or an open pyverbs Context"),
    ("gid_index", -1, "None or an int, 0..255"),
    ("gid_index", 256, "None or an int, 0..255"),
    ("gid_index", True, "None or an int, 0..255"),
    ("max_links", 0, "1..2 links"),
    ("max_links", 3, "1..2 links"),
    ("testlink_s", 0.05, "0 for none, or a number, 0.1..3600 seconds"),
    ("testlink_s", -1, "0 for none, or a number, 0.1..3600 seconds"),
    ("testlink_s", float("nan"), "0 for none, or a number"),
    ("testlink_s", False, "0 for none, or a number"),
    ("rocev2_in_v1", "yes", "True or False"),
]


@pytest.mark.parametrize(("name", "value", "wanted"), REFUSED)
def test_a_value_out_of_range(name: str, value: Any, wanted: str) -> None:
    """The message has the field, the value and what would be right."""
    with pytest.raises(SmcConfigError) as caught:
        SmcConfig(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name}={value!r}: must be ")
    assert wanted in message


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(SmcConfig)])
@pytest.mark.parametrize("text", ["no such thing", "-1", "\x7f"])
def test_a_variable_out_of_range(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """The message has the variable, that it is one, its text, the range and the unit, as that for the field has them."""
    monkeypatch.setenv(f"SMCFAST_{name.upper()}", text)
    with pytest.raises(SmcConfigError) as caught:
        SmcConfig()
    message = str(caught.value)
    assert message.startswith(f"environment variable SMCFAST_{name.upper()}={text!r}: must be ")
    with pytest.raises(SmcConfigError) as caught:
        SmcConfig(**{name: object()})
    wanted = str(caught.value).partition(": must be ")[2].partition(";")[0]
    assert wanted in message


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("FALLBACK", "never", "one of allow, warn, forbid"),
        ("PATHS", "smc-d,smc-d", "each at most once"),
        ("PATHS", "tcp", "or empty for TCP alone; with commas between them"),
        ("ASSUME", "nowhere", "; with commas between them; 'nowhere' has no port"),
        ("RMB_SIZE", "1 MB", "an int, a power of two, 16384..536870912 bytes; K, M or G may follow"),
        ("RMB_SIZE", "8K", "16384..536870912 bytes"),
        ("SPIN_US", "fast", "an int, 0..10000 microseconds"),
        ("PREALLOCATE", "yes", "True or False, or 1 or 0"),
        ("ALLOW_UIDS", "root", "ints, each 0..4294967294 (user ids); with commas between them"),
        ("HANDSHAKE_TIMEOUT", "soon", "a number, 0.1..3600 seconds"),
        ("HANDSHAKE_TIMEOUT", "nan", "a number, 0.1..3600 seconds"),
        ("DEVICE", "/dev/rxe0", "None or the name of an RDMA device, as rxe0 or mlx5_0:1 (its port)"),
        ("GID_INDEX", "first", "None or an int, 0..255 in the device's GID table"),
        ("TESTLINK_S", "never", "0 for none, or a number, 0.1..3600 seconds"),
    ],
)
def test_what_a_variable_should_be(monkeypatch: pytest.MonkeyPatch, name: str, text: str, wanted: str) -> None:
    monkeypatch.setenv(f"SMCFAST_{name}", text)
    with pytest.raises(SmcConfigError, match=f"SMCFAST_{name}") as caught:
        SmcConfig()
    assert wanted in str(caught.value)


def test_a_directory_may_be_a_path() -> None:
    config = SmcConfig(rendezvous_dir=PurePath("/run/smcfast"))
    assert config.rendezvous_dir == "/run/smcfast"
    assert config == SmcConfig(rendezvous_dir="/run/smcfast")


def test_a_device_may_be_a_context_of_pyverbs() -> None:
    """As pyverbs has it, whose module is not imported: the class is told by its names."""
    context = type("Context", (), {"__module__": "pyverbs.device", "name": "rxe0"})
    config = SmcConfig(device=context())
    assert config == SmcConfig(device="rxe0")
    derived = type("Mlx5Context", (context,), {"__module__": "pyverbs.providers.mlx5.mlx5dv", "name": b"mlx5_0"})
    assert SmcConfig(device=derived()).device == "mlx5_0"


async def test_a_config_that_is_none() -> None:
    for wrong in ({"fallback": "forbid"}, "forbid", SmcConfig, 0):
        with pytest.raises(TypeError, match="config must be an SmcConfig or None"):
            await smcfast.open_smc_connection("127.0.0.1", 1, config=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="config must be an SmcConfig or None"):
            await smcfast.start_smc_server(print, "127.0.0.1", 0, config=wrong)  # type: ignore[arg-type]


def test_it_is_frozen_and_hashable() -> None:
    one = SmcConfig(assume=["*:1"], allow_uids=[3])
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.spin_us = 0  # type: ignore[misc]
    assert hash(one) == hash(SmcConfig(assume=("*:1",), allow_uids=(3,)))
    assert dataclasses.replace(one, spin_us=0).assumes(None, "127.0.0.1", 1)


def test_an_unknown_variable_is_a_warning_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SMCFAST_RBM_SIZE", "65536")
    monkeypatch.setattr(config, "_warned", set())
    with caplog.at_level(logging.WARNING, "smcfast"):
        SmcConfig()
        SmcConfig()
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "unknown environment variable SMCFAST_RBM_SIZE"
    ]
    assert "SMCFAST_RMB_SIZE" in caplog.records[0].message


@pytest.mark.parametrize(
    ("pattern", "host", "address", "port", "matches"),
    [
        ("127.0.0.1:80", None, "127.0.0.1", 80, True),
        ("127.0.0.1:80", None, "127.0.0.1", 81, False),
        ("127.0.0.1:80", None, "127.0.0.2", 80, False),
        ("127.0.0.1:80", None, "::ffff:127.0.0.1", 80, True),
        ("127.0.0.1:*", None, "127.0.0.1", 81, True),
        ("*:80", None, "::1", 80, True),
        ("*:80", None, "::1", 8, False),
        ("10.0.0.0/8:80", None, "10.1.2.3", 80, True),
        ("10.0.0.0/8:80", None, "11.1.2.3", 80, False),
        ("10.0.0.0/8:80", None, "::1", 80, False),
        ("[::1]:80", None, "::1", 80, True),
        ("[fe80::/10]:80", None, "fe80::1%eth0", 80, True),
        ("[fd00::/8]:80", "x", "fd12::1", 80, True),
        ("db.example:80", "DB.example", "10.1.2.3", 80, True),
        ("db.example:80", "other", "10.1.2.3", 80, False),
        ("db.example:80", None, "10.1.2.3", 80, False),
    ],
)
def test_assume_patterns(pattern: str, host: str | None, address: str, port: int, matches: bool) -> None:
    assert patterns.parse(pattern).matches(host, address, port) == matches


@pytest.mark.parametrize(
    "text", ["", "host", ":80", "host:", "host:0", "host:65536", "host:-1", "10.0.0.1/8:1", "[x]:1"]
)
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|address|network|host bits"):
        patterns.parse(text)


def test_errors_survive_pickling() -> None:
    import pickle

    why = smcfast.Fallback(0x0301_0000, "peer_plain", "the peer did not announce SMC")
    for error in (smcfast.SmcFallbackError(why), smcfast.SmcHandshakeError(why)):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.fallback, str(copy)) == (type(error), why, str(error))
        assert isinstance(copy, smcfast.SmcError)
    assert (smcfast.SmcFallbackError(why).code, smcfast.SmcFallbackError(why).name) == why[:2]
    assert "0x03010000" in str(smcfast.SmcFallbackError(why))
