"""The traffic of the soak for a few rounds; and that its judge says no to what must not be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import smcfast
from soak import cancel, judge, traffic
from soak.plan import LIAR, Plan, pattern
from soak.talk import Talk
from support.streams import connected

ROUNDS = 8


@pytest.mark.timeout(300)
def test_some_rounds_of_traffic_with_faults(seed: int) -> None:
    figures = traffic.run(0, seed, ROUNDS)
    print(figures)
    assert figures["smc-d"] > ROUNDS


@pytest.mark.timeout(300)
def test_some_rounds_of_cancellations(seed: int) -> None:
    figures = cancel.run(500, seed)
    print(figures)
    assert figures["cancelled"] > 200
    assert min(figures["smc-d"], figures["tcp"]) > 50


def plan_with(**wanted: str) -> Plan:
    """The first plan whose ends close in these ways, and that is no echo."""
    plans = (Plan.of(seed) for seed in range(10_000))
    return next(
        plan
        for plan in plans
        if not plan.echo and all(getattr(plan, role).ending == ending for role, ending in wanted.items())
    )


def report(plan: Plan, role: str, **other: Any) -> judge.Report:
    """What an end says when all went well."""
    own, peer = plan.parts(role)
    good = {"path": "smc-d", "reason": None, "sent": own.goal, "got": peer.goal, "end": "eof"}
    return {"seed": plan.seed, "role": role, "refused": False, "error": None, **good, **other}


@pytest.mark.parametrize(
    "wrong",
    [
        {"got": 1},
        {"end": "reset"},
        {"end": "own"},
        {"end": "misbehaved"},
        {"refused": True},
        {"path": "tcp"},
        {"error": "WrongBytesError"},
    ],
    ids=str,
)
def test_the_judge(wrong: dict[str, Any]) -> None:
    plan = plan_with(client="eof", server="eof")
    calm = {"lost": False, "starved": False, "late": False}
    assert judge.faults(report(plan, "client"), **calm) == []
    assert judge.faults(report(plan, "client", **wrong), **calm)


def test_the_judge_of_a_lost_peer() -> None:
    plan = plan_with(client="eof", server="eof")
    lost = {"lost": True, "starved": False, "late": False}
    assert judge.faults(report(plan, "client", end="reset", got=1, refused=True), **lost) == []
    assert judge.faults(report(plan, "client", end="eof", got=1), **lost), "an end is complete, whoever was killed"


@pytest.mark.parametrize("role", ["client", "server"])
async def test_a_wrong_byte_is_noticed(role: str) -> None:
    plan = plan_with(client="eof", server="eof")
    own, peer = plan.parts(role)
    async with connected() as (client, server):
        talking = asyncio.ensure_future(Talk(plan, role, client.reader, client.writer).run())
        data = bytearray(pattern(peer.start, 0, min(peer.goal, 1000)))
        data[-1] ^= 1
        server.writer.write(data)
        server.writer.write_eof()
        told = await talking
        assert "wrong bytes" in told["error"]
        assert own.goal >= told["sent"]


async def test_a_lie_is_told_of() -> None:
    plan = Plan.of(plan_with(client="eof", server="eof").seed | LIAR)
    async with connected(config=smcfast.SmcConfig(rmb_size=16 << 10)) as (client, server):
        talking = asyncio.ensure_future(Talk(plan, "server", server.reader, server.writer).run())
        client.writer.transport._sock.send(b"beside the ring")  # type: ignore[attr-defined]
        told = await talking
        assert (told["end"], told["error"]) == ("misbehaved", None)
