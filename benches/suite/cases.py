"""What is measured: the cases, each over several transports in turn, and the figures that are held to a gate.

The gates are ratios to U, asyncio's streams over loopback TCP on uvloop, in the same round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SMC, BIG_RING, NO_SPIN = "smcfast", "smcfast, 4 MiB ring", "smcfast, no spinning"
MIB = 1 << 20


@dataclass(frozen=True)
class Transport:
    """One way of moving bytes: what carries them, and what the two processes run on."""

    over: str
    kind: str

    def __str__(self) -> str:
        return f"{self.over} ({self.kind})"


def _on(kind: str, *overs: str) -> tuple[Transport, ...]:
    return tuple(Transport(over, kind) for over in overs)


OURS = Transport(SMC, "uvloop")
U = Transport("tcp", "uvloop")
BLOCKING_UNIX = Transport("unix", "blocking")
LOOPS = (*_on("uvloop", SMC, "tcp", "unix"), *_on("asyncio", SMC, "tcp", "unix"))
EVERY = (*LOOPS, *_on("blocking", SMC, "tcp", "unix"), *_on("ucxx", "ucxx"), *_on("iceoryx2", "iceoryx2"))
QUIET = _on("uvloop", NO_SPIN)
WIDE = _on("uvloop", BIG_RING)

Place = Literal["a core each", "one core", "not pinned"]


@dataclass(frozen=True)
class Case:
    """One measurement, by each of its transports in each round."""

    key: str
    work: str
    details: dict[str, Any]
    transports: tuple[Transport, ...]
    place: Place = "a core each"
    rounds: int = 5


@dataclass(frozen=True)
class Row:
    """A figure of a case in the table, the gate it must hold and the goal behind it; rows without a gate inform.

    `sense` is "gain" for how many times better than the reference, "cost" for how many times the reference's value
    (less is better), "value" for the figure itself (less is better), `scale` times what was measured.
    """

    title: str
    case: str
    figure: str
    sense: Literal["gain", "cost", "value"] = "gain"
    gate: float | None = None
    goal: float | None = None
    subject: Transport = OURS
    reference: Transport = U
    better: Literal["low", "high"] = "low"
    unit: str = field(default="us", kw_only=True)
    scale: float = field(default=1.0, kw_only=True)

    @property
    def key(self) -> str:
        """What tells it from the other rows."""
        return f"{self.case} {self.figure} {self.subject} {self.reference}"


SECONDS = 0.15

CASES: tuple[Case, ...] = (
    Case("rtt 64 B", "echo", {"size": 64, "seconds": SECONDS}, EVERY + QUIET),
    Case("rtt 64 B one core", "echo", {"size": 64, "seconds": SECONDS}, (*LOOPS, BLOCKING_UNIX), "one core"),
    Case("rtt 64 B not pinned", "echo", {"size": 64, "seconds": SECONDS}, (*LOOPS, BLOCKING_UNIX), "not pinned"),
    Case("rtt 16 KiB", "echo", {"size": 16 << 10, "seconds": SECONDS}, EVERY + QUIET),
    Case("stream 64 KiB", "stream", {"chunk": 64 << 10, "seconds": 0.2}, EVERY + QUIET + WIDE),
    Case("stream 1 MiB", "stream", {"chunk": MIB, "seconds": 0.2}, EVERY + QUIET + WIDE),
    Case("stream 64 KiB one core", "stream", {"chunk": 64 << 10, "seconds": 0.2}, (*LOOPS, BLOCKING_UNIX), "one core"),
    Case("writes 64 B", "stream", {"chunk": 64, "seconds": SECONDS}, EVERY + QUIET),
    Case("16 connections", "many", {"size": 64, "seconds": 0.2, "connections": 16}, LOOPS + QUIET),
    Case("1 kHz", "paced", {"size": 64, "seconds": 0.6, "interval": 0.001}, LOOPS + QUIET),
    Case("ticker", "stream", {"chunk": 64 << 10, "seconds": 0.6, "ticker": True}, LOOPS),
    Case("set-up", "cycles", {"count": 150}, LOOPS),
    Case("open", "connects", {"count": 100}, LOOPS),
    Case("idle", "idle", {"count": 1000, "seconds": 5.0}, _on("uvloop", SMC, "tcp"), rounds=1),
)

LADDER_SIZES = tuple(64 << 2 * step for step in range(9))
"""64 B to 4 MiB."""
LADDER: tuple[Case, ...] = tuple(
    Case(f"ladder {work} {size}", work, details | {"seconds": 0.06}, EVERY + (WIDE if work == "stream" else QUIET))
    for size in LADDER_SIZES
    for work, details in (("echo", {"size": size}), ("stream", {"chunk": size}))
)

_STREAM: dict[str, Any] = {"figure": "bytes_per_s", "better": "high", "unit": "GB/s", "scale": 1e-9}
_COUNT: dict[str, Any] = {"better": "high", "unit": "k/s", "scale": 1e-3}

ROWS: tuple[Row, ...] = (
    Row("round trip, 64 B", "rtt 64 B", "p50_us", "gain", 20, 150),
    Row("round trip, 64 B, both on one core", "rtt 64 B one core", "p50_us", "gain", 1.3, 2.4),
    Row("round trip, 64 B, no spinning", "rtt 64 B", "p50_us", "gain", 1.1, 1.4, QUIET[0]),
    Row("round trip, 64 B, not pinned", "rtt 64 B not pinned", "p50_us"),
    Row("round trip, 16 KiB", "rtt 16 KiB", "p50_us", "gain", 3, 20),
    Row("round trip, 16 KiB, no spinning", "rtt 16 KiB", "p50_us", subject=QUIET[0]),
    Row("stream, 64 KiB chunks", "stream 64 KiB", sense="gain", gate=2, goal=5, **_STREAM),
    Row("stream, 64 KiB chunks, 4 MiB ring", "stream 64 KiB", gate=4, goal=10, subject=WIDE[0], **_STREAM),
    Row("stream, 64 KiB chunks, no spinning", "stream 64 KiB", subject=QUIET[0], **_STREAM),
    Row("stream, 64 KiB chunks, both on one core", "stream 64 KiB one core", **_STREAM),
    Row("stream, 1 MiB chunks", "stream 1 MiB", gate=1.3, goal=3, **_STREAM),
    Row("stream, 1 MiB chunks, 4 MiB ring", "stream 1 MiB", gate=3, goal=8, subject=WIDE[0], **_STREAM),
    Row("stream, 1 MiB chunks, no spinning", "stream 1 MiB", subject=QUIET[0], **_STREAM),
    Row("64 B writes a second", "writes 64 B", "writes_per_s", "gain", 5, 25, **_COUNT),
    Row("16 connections, messages a second", "16 connections", "messages_per_s", "gain", 3, 8, **_COUNT),
    Row("16 connections, no spinning", "16 connections", "messages_per_s", subject=QUIET[0], **_COUNT),
    Row("1 kHz, round trip, 64 B", "1 kHz", "p50_us", "gain", 1.5, 2.8),
    Row("1 kHz, CPU for a message", "1 kHz", "cpu_us", "cost", 1.0, 0.7),
    Row("1 kHz, round trip, no spinning", "1 kHz", "p50_us", subject=QUIET[0]),
    Row("1 kHz, CPU, no spinning", "1 kHz", "cpu_us", "cost", subject=QUIET[0]),
    Row("1 ms ticker beside a full stream, p99 late", "ticker", "late_there_us", "cost", 3, 1.2),
    Row("the same at the sending end", "ticker", "late_here_us", "cost"),
    Row("connections set up a second, sequential", "set-up", "per_s", "gain", 0.4, 1, **_COUNT),
    Row("the client's open alone", "open", "per_s", **_COUNT),
    Row("memory of one idle end", "idle", "memory_bytes", "value", 16, 8, unit="KiB", scale=1 / 1024),
    Row("CPU of 1000 idle connections", "idle", "cpu_percent", "value", 0.1, 0, unit="%"),
    Row("against a blocking unix socket: round trip, 64 B", "rtt 64 B", "p50_us", "gain", 10, reference=BLOCKING_UNIX),
    Row("against a blocking unix socket: 64 KiB chunks", "stream 64 KiB", gate=1.5, reference=BLOCKING_UNIX, **_STREAM),
    Row("against a blocking unix socket: 1 MiB chunks", "stream 1 MiB", gate=1.5, reference=BLOCKING_UNIX, **_STREAM),
)
