"""What is counted: in a fixed order, under names that can come about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import smcfast
from smcfast import _core, reasons

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[1]

COUNTERS = [
    "bytes_sent",
    "bytes_received",
    "messages_sent",
    "messages_received",
    "wakeups_sent",
    "wakeups_received",
    "spins",
    "stalls_sent",
    "stalls_received",
]


async def test_the_counters_of_a_stream_have_one_order() -> None:
    server = await smcfast.start_smc_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        for _ in range(3):
            reader, writer = await smcfast.open_smc_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b""
            info = writer.get_extra_info("smc")
            assert info.path == "smc-d"
            assert list(info.counters) == COUNTERS
            writer.close()
            await writer.wait_closed()


def test_the_fallbacks_have_one_order() -> None:
    assert list(smcfast.stats()) == ["connections", "fallbacks", "forbidden", "failed"]
    assert list(smcfast.stats()["connections"]) == ["smc-d", "tcp"]
    names = [name for name in smcfast.stats()["fallbacks"] if not name.startswith("diagnosis_")]
    assert names[: len(reasons.names())] == list(reasons.names())
    assert list(_core.DIAGNOSES) == sorted(_core.DIAGNOSES)


def test_every_clc_reason_is_one_that_this_version_can_decline_with() -> None:
    """Looked up in the layers that decline, and in the two codes that Python itself declines with."""
    sources = [
        path
        for layer in ("src/proto/handshake", "src/driver/setup", "src/python")
        for path in (ROOT / layer).rglob("*.rs")
        if path.name != "tests.rs"
    ]
    used = {name.lower() for path in sources for name in re.findall(r"Diagnosis::([A-Z0-9_]+)", path.read_text())}
    used.add(_core.DIAGNOSES[reasons.DECLINED_VERSION][0])
    # Every engine has an emulated ISM device.
    used -= {"all", "no_ism_v2"}
    assert {_core.DIAGNOSES[code][0] for code in reasons.SAME_HOST} == used
    assert list(reasons.SAME_HOST) == sorted(reasons.SAME_HOST)
    assert reasons.names()[-len(used) :] == tuple(_core.DIAGNOSES[code][0] for code in reasons.SAME_HOST)


def test_a_code_of_another_version_is_counted_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import Counter

    from smcfast import counts

    monkeypatch.setattr(counts, "_fallbacks", Counter())
    monkeypatch.setattr(counts, "_connections", Counter())
    for code in (0x0302_0000, 0x1234_5678):
        assert reasons.diagnosis(code).name not in smcfast.stats()["fallbacks"]
        counts.count_fallback(reasons.diagnosis(code), forbidden=False)
    fallbacks = smcfast.stats()["fallbacks"]
    assert list(fallbacks)[-2:] == ["ipsec", "diagnosis_12345678"]
    assert sum(fallbacks.values()) == smcfast.stats()["connections"]["tcp"] == 2


def test_stats_is_only_a_function() -> None:
    import importlib.util

    assert callable(smcfast.stats)
    assert importlib.util.find_spec("smcfast.stats") is None
