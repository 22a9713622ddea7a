"""Forward plain ports to SMC ones and back, so that programs in any language take part.

A forward is LISTEN=CONNECT. Either side is tcp:HOST:PORT, unix:PATH or smc:HOST:PORT, and at least one of them smc:. Beside a
client it is tcp:127.0.0.1:6379=smc:10.0.0.2:7379, beside a server smc:*:7379=unix:/run/redis.sock. A host * listens at every
address, a port 0 at a free one; IPv6 stands in brackets. SIGTERM or SIGINT ends it behind the connections that are open, a
second one at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import smcfast
from smcfast import counts, ends, log
from smcfast.cli import loops
from smcfast.config import SmcConfig
from smcfast.errors import SmcConfigError
from smcfast.forward import Forward, Places

if TYPE_CHECKING:
    from smcfast.forward import Passage

HELP = "forward TCP and unix ports to SMC ones and back, for programs in any language"

_EPILOG: Final = """\
Example: smcfast proxy tcp:127.0.0.1:6379=smc:10.0.0.2:7379
Settings of SMC are the variables SMCFAST_*. Exit code: 0 ended by a signal, 1 a port could not be listened at or connections
were cut off at the end, 2 misuse."""
_SPARE: Final = 64
"""Descriptors for everything but connections."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("forwards", nargs="+", type=_forward, metavar="LISTEN=CONNECT", help="one forward; any number")
    parser.add_argument(
        "--max-connections",
        type=_positive,
        default=1024,
        metavar="N",
        help="connections of all forwards together; further ones are reset (default: %(default)s)",
    )
    parser.add_argument(
        "--connect-timeout", type=_seconds, default=10.0, metavar="S", help="seconds to connect (default: %(default)g)"
    )
    parser.add_argument(
        "--drain-timeout",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds that open connections have at the end before they are reset (default: %(default)g)",
    )
    parser.add_argument(
        "--mode", type=_mode, default=0o600, metavar="M", help="file mode of unix sockets, octal (default: 600)"
    )
    parser.add_argument("--uvloop", action="store_true", help="run on uvloop, which must be installed")
    parser.add_argument("--verbose", action="store_true", help="print a line for each connection that has ended")
    parser.add_argument("--json", action="store_true", help="print each line as a JSON object")


def _forward(text: str) -> tuple[ends.End, ends.End]:
    try:
        return ends.parse_pair(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: must be seconds, 0 or more")
    return seconds


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise argparse.ArgumentTypeError(f"{text!r}: must be octal, 0..777")
    return mode


def run(options: argparse.Namespace) -> int:
    """Forward until a signal comes; the exit code."""
    factory = loops.factory(options.uvloop)
    if factory is None:
        return 2
    try:
        SmcConfig()
        log.set_up()
    except SmcConfigError as error:
        return _failed(options, error, 2)
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_Proxy(options).run())


def _failed(options: argparse.Namespace, error: object, code: int) -> int:
    if options.json:
        print(json.dumps({"error": str(error)}))
    else:
        print(error, file=sys.stderr)
    return code


class _Proxy:
    """All forwards of this process, and what they tell."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._places = Places(options.max_connections)
        self._forwards = [
            Forward(pair, self._places, options.connect_timeout, self._passed) for pair in options.forwards
        ]
        self._troubles: dict[str, str] = {}
        self._sums = dict.fromkeys(("connections", "refused", "not_connected", "reset", "bytes_there", "bytes_back"), 0)

    async def run(self) -> int:
        """Listen, forward, and end in good order if the connections let us."""
        asyncio.get_running_loop().set_exception_handler(_report)
        self._make_room()
        signals: asyncio.Queue[int] = asyncio.Queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
        try:
            for forward in self._forwards:
                try:
                    names = await forward.start(self._options.mode)
                except (OSError, OverflowError) as error:
                    return _failed(self._options, f"{forward}: cannot listen: {_words(error)}", 1)
                self._say(
                    f"{forward}: listening at {', '.join(names)}",
                    {"event": "listening", "forward": str(forward), "at": names},
                )
            await signals.get()
        finally:
            for forward in self._forwards:
                forward.close()
        cut = await self._drain(signals)
        self._say_farewell(cut)
        return 1 if cut else 0

    def _make_room(self) -> None:
        """Let this process have as many descriptors as its connections need, if it may."""
        limit = self._places.limit
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 4 * limit + _SPARE  # two for each connection, and some more while it is being set up
        possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft != resource.RLIM_INFINITY and soft < possible:
            resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
        if possible < 2 * limit + _SPARE:
            self._places.limit = max((possible - _SPARE) // 2, 1)
            self._warn(f"RLIMIT_NOFILE is {hard}: no more than {self._places.limit} connections are taken")

    async def _drain(self, signals: asyncio.Queue[int]) -> int:
        """Let the connections end by themselves, until the time is up or another signal comes; how many did not."""
        tasks = self._places.tasks
        waiting = asyncio.ensure_future(signals.get())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.drain_timeout):
                while tasks and not waiting.done():
                    await asyncio.wait({*tasks, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        left = [*tasks]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        return len(left)

    # What is told.

    def _passed(self, passage: Passage) -> None:
        """A connection is over, or was refused."""
        sums = self._sums
        sums["connections"] += 1
        sums["refused"] += passage.refused
        sums["not_connected"] += not passage.refused and not passage.connected
        sums["reset"] += passage.connected and passage.fault is not None
        sums["bytes_there"] += passage.there.size
        sums["bytes_back"] += passage.back.size
        self._note(passage)
        if self._options.verbose:
            self._say(_line(passage), {"event": "connection", **_told(passage)})

    def _note(self, passage: Passage) -> None:
        """Warn once of what does not work, until it works again: a line for each connection would hide the rest."""
        slow = next((info.fallback for info in passage.infos if info.fallback is not None), None)
        now = {
            "refused": passage.fault if passage.refused else None,
            "connect": f"cannot connect: {passage.fault}" if not passage.connected else None,
            "path": None if slow is None else f"TCP and not SMC: {slow}",
        }
        for kind, text in now.items():
            if passage.refused != (kind == "refused"):
                continue  # what was not tried is not known
            key = f"{passage.forward} {kind}"
            if text is None:
                self._troubles.pop(key, None)
            elif self._troubles.get(key) != text:
                self._troubles[key] = text
                self._warn(f"{passage.forward}: {text}")

    def _say_farewell(self, cut: int) -> None:
        sums, stats = self._sums, smcfast.stats()
        moved = f"{sums['bytes_there']} bytes there, {sums['bytes_back']} back"
        rare = {
            "refused": sums["refused"],
            "not connected": sums["not_connected"],
            "reset": sums["reset"] - cut,
            "cut off": cut,
        }
        words = "".join(f", {count} {name}" for name, count in rare.items() if count)
        self._say(
            f"ended: {sums['connections']} connections{words}; by SMC {counts.line(stats)}; {moved}",
            {
                "event": "ended",
                **sums,
                "cut_off": cut,
                "paths": stats["connections"],
                "fallbacks": counts.reasons_of(stats),
            },
        )

    def _warn(self, text: str) -> None:
        if self._options.json:
            self._say("", {"event": "warning", "text": text})
        else:
            print(text, file=sys.stderr, flush=True)

    def _say(self, text: str, told: dict[str, Any]) -> None:
        # Who has read enough of it does not end the forwards.
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(told) if self._options.json else text, flush=True)


def _report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio would print with a traceback."""
    error = context.get("exception")
    print(context["message"] + ("" if error is None else f": {error!r}"), file=sys.stderr, flush=True)


def _told(passage: Passage) -> dict[str, Any]:
    return {
        "forward": passage.forward,
        "peer": passage.peer,
        "paths": [info.path for info in passage.infos],
        "reasons": [info.reason for info in passage.infos],
        "bytes_there": passage.there.size,
        "bytes_back": passage.back.size,
        "seconds": round(passage.seconds, 6),
        "fault": passage.fault,
    }


def _line(passage: Passage) -> str:
    paths = " and ".join(info.path + (f" ({info.reason})" if info.reason else "") for info in passage.infos)
    moved = f"{passage.there.size} bytes there, {passage.back.size} back, {passage.seconds:.3f} s"
    end = "" if passage.fault is None else f", {passage.fault}"
    return f"{passage.forward}: {passage.peer} by {paths or 'no path'}: {moved}{end}"


def _words(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
