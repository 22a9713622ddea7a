"""What may have become of a connection, given its plan and the faults that it has met."""

from __future__ import annotations

from typing import Any, Final

from soak.plan import LIAR, Plan

Report = dict[str, Any]
HELLO: Final = 8
"""Bytes of the seed that a client sends before anything else."""


def faults(report: Report, *, lost: bool, starved: bool, late: bool) -> list[str]:
    """What is wrong with the report of one end.

    :param lost: the process at the other end was killed meanwhile.
    :param starved: one of the processes had no descriptors to spare meanwhile.
    :param late: one of them was stopped meanwhile, so that a client may have taken its server for a plain one.
    """
    plan = Plan.of(report["seed"])
    found = [] if report["error"] is None else [report["error"]]
    if report["seed"] & LIAR:
        return found  # That it ended, without an error of another kind, is all that can be asked for.
    own, peer = plan.parts(report["role"])
    orderly = peer.stays and not lost
    if report["path"] != "smc-d" and not (lost or starved or late):
        found.append(f"the path is {report['path']} ({report['reason']})")
    if report["end"] == "eof" and report["got"] != peer.goal and not (lost and report["path"] == "tcp"):
        found.append(f"an end after {report['got']} of {peer.goal} bytes")
    if report["end"] == "reset" and orderly:
        found.append("a reset by a peer that ended in good order")
    if report["end"] == "misbehaved":
        found.append("a peer that was honest is said to lie")
    if report["refused"] and orderly:
        found.append("a write was refused by a peer that reads to the end")
    if own.stays and report["end"] not in ("eof", "reset"):
        found.append(f"it did not see the end, but {report['end']!r}")
    return [f"{fault}: {plan}, {report}" for fault in found]
