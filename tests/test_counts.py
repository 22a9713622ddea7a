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
    assert list(smcfast.stats()) == ["connections", "fallbacks", "forbidden", "failed", "totals"]
    assert list(smcfast.stats()["connections"]) == ["smc-d", "smc-r", "kernel", "tcp"]
    names = [name for name in smcfast.stats()["fallbacks"] if not name.startswith("diagnosis_")]
    assert names[: len(reasons.names())] == list(reasons.names())
    assert list(_core.DIAGNOSES) == sorted(_core.DIAGNOSES)


def test_every_clc_reason_is_one_that_this_version_can_decline_with() -> None:
    """Looked up in the layers that decline, and in the two codes that Python itself declines with."""
    sources = [
        path
        for layer in ("src/proto/handshake", "src/proto/link", "src/driver/setup", "src/python")
        for path in (ROOT / layer).rglob("*.rs")
        if path.name != "tests.rs"
    ]
    used = {name.lower() for path in sources for name in re.findall(r"Diagnosis::([A-Z0-9_]+)", path.read_text())}
    used.add(_core.DIAGNOSES[reasons.DECLINED_VERSION][0])
    used.discard("all")
    assert {_core.DIAGNOSES[code][0] for code in reasons.DECLINED} == used
    assert list(reasons.DECLINED) == sorted(reasons.DECLINED)
    assert reasons.names()[-len(used) :] == tuple(_core.DIAGNOSES[code][0] for code in reasons.DECLINED)


def test_a_code_of_another_version_is_counted_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from smcfast import counts, page

    for counters in (_core.Status(os.getpid()), counts._Private()):
        monkeypatch.setattr(counts, "_counters", lambda counters=counters: counters)
        for code in (0x0302_0000, 0x1234_5678):
            assert reasons.diagnosis(code).name not in smcfast.stats()["fallbacks"]
            counts.count_fallback(reasons.diagnosis(code), forbidden=False)
        counts.count_failure(reasons.reason("uid"))
        counts.count_fallback(reasons.reason("uid"), forbidden=True)
        counts.count_connection("smc-d")
        stats = smcfast.stats()
        assert {"ipsec": 1, "diagnosis_12345678": 1, "uid": 2}.items() <= stats["fallbacks"].items()
        assert sum(stats["fallbacks"].values()) == 4
        assert stats["connections"] == {"smc-d": 1, "smc-r": 0, "kernel": 0, "tcp": 2}
        assert (stats["forbidden"], stats["failed"]) == (1, 1)
    assert page.page() is not None


def test_reasons_that_a_peer_makes_up_take_no_memory_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from smcfast import counts

    counters = _core.Status(os.getpid())
    monkeypatch.setattr(counts, "_counters", lambda: counters)
    for code in range(0x1000_0000, 0x1000_0000 + 1000):
        counts.count_fallback(reasons.diagnosis(code), forbidden=False)
    fallbacks = smcfast.stats()["fallbacks"]
    assert fallbacks["other"] == 1000 - 128
    assert sum(fallbacks.values()) == smcfast.stats()["connections"]["tcp"] == 1000


def test_every_reason_is_known_by_its_code() -> None:
    for name in reasons.names():
        row = reasons._TABLE.get(name)
        assert row is None or reasons.known(row.code) == row
    assert reasons.known(reasons.DECLINED_MEMORY) == reasons.diagnosis(reasons.DECLINED_MEMORY)


def test_stats_is_only_a_function() -> None:
    import importlib.util

    assert callable(smcfast.stats)
    assert importlib.util.find_spec("smcfast.stats") is None
