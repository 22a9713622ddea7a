"""Configuration: where a value comes from, what is refused and in which words."""

from __future__ import annotations

import dataclasses
import logging
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
    ("RENDEZVOUS_DIR", "", None),
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
    ("paths", "smc-d", "a sequence of smc-d, smc-r, kernel, each at most once (not in this version: smc-r, kernel)"),
    ("paths", ("smc-d", []), "a sequence"),
    ("discovery", ("dns",), "rendezvous, option, each at most once (not in this version: option)"),
    ("assume", ("nowhere",), "no port"),
    ("assume", ("::1:80",), "brackets"),
    ("assume", (7,), "a sequence of strings host:port"),
    ("assume", (b"*:1",), "b'*:1' is no string"),
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
    ("handshake_timeout", 0, "0.1..3600 seconds"),
    ("handshake_timeout", float("nan"), "0.1..3600 seconds"),
    ("handshake_timeout", float("inf"), "0.1..3600 seconds"),
    ("max_pending_handshakes", 0, "1..65536 handshakes"),
    ("ueids", tuple(f"ID{n}" for n in range(9)), "at most 8"),
    ("ueids", ("lower",), "A-Z 0-9"),
    ("ueids", ("A" * 33,), "1..32 characters"),
    ("ueids", (".A",), "a letter or a digit first (without effect: this version has no smc-r)"),
    ("rendezvous_dir", "/tmp", "None"),
    ("device", "rxe0", "None"),
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
        ("ASSUME", "nowhere", "(commas between them); 'nowhere' has no port"),
        ("RMB_SIZE", "1 MB", "an int, a power of two, 16384..536870912 bytes (K, M or G may follow it)"),
        ("RMB_SIZE", "8K", "16384..536870912 bytes"),
        ("SPIN_US", "fast", "an int, 0..10000 microseconds"),
        ("PREALLOCATE", "yes", "True or False, or 1 or 0"),
        ("ALLOW_UIDS", "root", "ints, each 0..4294967294 (user ids) (commas between them)"),
        ("HANDSHAKE_TIMEOUT", "soon", "a number, 0.1..3600 seconds"),
        ("HANDSHAKE_TIMEOUT", "nan", "a number, 0.1..3600 seconds"),
        ("DEVICE", "rxe0", "None: this version has no smc-r"),
    ],
)
def test_what_a_variable_should_be(monkeypatch: pytest.MonkeyPatch, name: str, text: str, wanted: str) -> None:
    monkeypatch.setenv(f"SMCFAST_{name}", text)
    with pytest.raises(SmcConfigError, match=f"SMCFAST_{name}") as caught:
        SmcConfig()
    assert wanted in str(caught.value)


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
