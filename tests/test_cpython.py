"""CPython's own cases for connections, of this interpreter, with our functions in the place of the event loop's.

Many of them have a plain socket in a thread at the other end, so their connections are TCP: each path has its cases.
"""

from __future__ import annotations

import asyncio
import gc
import unittest
import warnings
from typing import Any

import pytest

import smcfast
from support.protocols import config_of

pytest.importorskip("test.test_asyncio", reason="this Python comes without its own tests")

from support.cpython import SmcEventLoop, cases

ENDS_EARLY = (
    "closes the server while its end of a handshake is under way, which drops the connection: the client has its own"
    " already, where with TCP both come in one turn of the loop"
)
TURNS = "counts the turns of the loop until a connection is gone, of which a server of smcfast takes one more"
NAME = 'wants the text "unclosed <StreamWriter", and it is an SmcStreamWriter'
EXCUSED = {
    "test_streams.test_unhandled_exception": ENDS_EARLY,
    "test_streams.test_unhandled_exceptions": ENDS_EARLY,
    "test_server.test_wait_closed_basic": ENDS_EARLY,
    "test_server.test_close_clients": TURNS,
    "test_streams.test_unclosed_resource_warnings": NAME,
    "test_streams.test_unclosed_server_resource_warnings": NAME,
}
"""Cases that apply, and why they are not run: in none of them, and on none of the paths."""
PULLED = "waits until the transport has paused reading; our reader takes its bytes from the ring by itself"
EXCUSED_OF_STREAMS = {"test_server.test_abort_clients": PULLED}
"""Likewise for our own streams; with asyncio's over our transports they are run."""
NOT_OURS = {"test_events.test_connect_accepted_socket", "test_events.test_ssl_connect_accepted_socket"}
"""Cases that look like ours and call none of our functions."""
CASES = {name: (kind, method) for name, kind, method in cases() if name not in NOT_OURS}
RUN = [name for name in CASES if name not in EXCUSED]
STREAMS = ("test_streams", "test_server", "test_buffered_proto")
OF_STREAMS = [name for name in RUN if name.partition(".")[0] in STREAMS and name not in EXCUSED_OF_STREAMS]
OF_TCP = [name for name in RUN if not name.startswith("test_ssl.")]  # whose connections are TCP in any case


def test_nine_in_ten_cases_are_run() -> None:
    assert len(CASES) >= 40
    assert len(RUN) >= 0.9 * len(CASES)


def run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one case on loops of ours."""
    kind, method = CASES[name]
    for place in (asyncio, asyncio.events):
        monkeypatch.setattr(place, "new_event_loop", SmcEventLoop)
    monkeypatch.setattr(asyncio, "SelectorEventLoop", SmcEventLoop)
    monkeypatch.setattr(kind, "loop_factory", SmcEventLoop, raising=False)
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a case may leave things open
        kind(method).run(result)
        gc.collect()
    for _, why in result.skipped:
        pytest.skip(why)
    for _, trace in result.failures + result.errors:
        pytest.fail(trace)


@pytest.mark.parametrize("name", RUN)
def test_protocols_on_the_best_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmcEventLoop, "config", config_of("smc-d"))
    monkeypatch.setattr(SmcEventLoop, "calls", 0)
    run(name, monkeypatch)
    assert SmcEventLoop.calls, "this case has nothing to do with us"


@pytest.mark.parametrize("name", OF_TCP)
def test_protocols_on_tcp(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = smcfast.stats()["connections"]["smc-d"]
    monkeypatch.setattr(SmcEventLoop, "config", config_of("tcp"))
    run(name, monkeypatch)
    assert smcfast.stats()["connections"]["smc-d"] == before


@pytest.mark.parametrize("name", OF_STREAMS)
def test_streams(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our own streams as well, which are more than asyncio's over our transports."""
    monkeypatch.setattr(SmcEventLoop, "config", config_of("smc-d"))
    monkeypatch.setattr(asyncio, "open_connection", smcfast.open_smc_connection)
    monkeypatch.setattr(asyncio, "start_server", smcfast.start_smc_server)
    run(name, monkeypatch)


def test_cases_are_on_rings_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some that have both ends in one loop: had they fallen back, they would have shown nothing of us."""
    both: list[Any] = [name for name in RUN if name.endswith(("start_server", "start_tls", "create_server_ssl"))]
    both.append("test_buffered_proto.test_buffered_proto_create_connection")
    monkeypatch.setattr(SmcEventLoop, "config", config_of("smc-d"))
    for name in both:
        before = smcfast.stats()["connections"]["smc-d"]
        run(name, monkeypatch)
        assert smcfast.stats()["connections"]["smc-d"] >= before + 2, name
