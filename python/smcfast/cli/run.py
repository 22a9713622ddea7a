"""Run a Python program with SMC for its asyncio connections: the program stays as it is.

What it opens and serves with asyncio's streams and protocols, on asyncio's own event loop or on uvloop, takes the fastest path
that both ends share. PATTERN is HOST:PORT as in SMCFAST_ASSUME: a name, an address, a network or *, and a port or *.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import smcfast
from smcfast import patterns, setting
from smcfast.config import SmcConfig
from smcfast.errors import SmcConfigError

HELP = "run a Python program, unchanged, with SMC for its asyncio connections"

_EPILOG: Final = """\
Examples: smcfast run server.py 8000
          smcfast run --only 10.0.0.0/8:* -m uvicorn app:main
At its end the program prints one line on stderr: how many connections took which path, and why those that are TCP are. Settings of
SMC are the variables SMCFAST_*; the options below set some of them. Exit code: the program's own, 2 for misuse."""
_VARIABLES: Final = {"receive_size": "RMB_SIZE", "fallback": "FALLBACK", "paths": "PATHS", "log": "LOG"}
_STARTED: Final = Path(smcfast.__file__).with_name("started")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.usage = f"{parser.prog} [options] (PROGRAM | -m MODULE) [argument ...]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "--only",
        action="append",
        default=[],
        type=_pattern,
        metavar="PATTERN",
        help="these addresses alone; repeatable",
    )
    add(
        "--not",
        action="append",
        default=[],
        type=_pattern,
        metavar="PATTERN",
        dest="never",
        help="not these; repeatable",
    )
    add("--receive-size", metavar="SIZE", help="bytes of each connection's receive buffer: SMCFAST_RMB_SIZE")
    add(
        "--send-size", type=_size, metavar="SIZE", help="bytes that may wait to be sent before a writer is paused (64K)"
    )
    add("--fallback", metavar="HOW", help="allow, warn or forbid TCP: SMCFAST_FALLBACK")
    add("--paths", metavar="PATHS", help="of smc-d, smc-r and kernel, with commas between: SMCFAST_PATHS")
    add("--log", metavar="LEVEL", help="tell of each connection on stderr, info or debug: SMCFAST_LOG")
    add("--children", action="store_true", help="Python programs that it starts take part too")
    add("--quiet", action="store_true", help="no line at the end")
    add("--json", action="store_true", help="that line as a JSON object")
    add("-m", nargs=argparse.REMAINDER, dest="module", metavar="MODULE", help="run a module, as python -m does")
    add("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="a file, as python takes it, and its arguments")


def _pattern(text: str) -> str:
    try:
        patterns.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _size(text: str) -> int:
    try:
        return setting.parse_size(text)
    except setting.Refused:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be bytes, with K, M or G (powers of 1024) or without"
        ) from None


def run(options: argparse.Namespace) -> int:
    """Become the program; misuse is 2."""
    words = ["-m", *options.module] if options.module else options.program
    if not words or words == ["-m"]:
        print("neither a program nor a module is named", file=sys.stderr)
        return 2
    if sys.flags.ignore_environment:
        print("an interpreter that ignores PYTHONPATH (-E, -I) cannot hand anything on to the program", file=sys.stderr)
        return 2
    for name, variable in _VARIABLES.items():
        value = getattr(options, name)
        if value is not None:
            os.environ[setting.PREFIX + variable] = value
    try:
        SmcConfig()
        smcfast.log.set_up()
    except SmcConfigError as error:
        print(error, file=sys.stderr)
        return 2
    told = {name: getattr(options, name) for name in ("only", "never", "send_size", "children", "quiet", "json")}
    os.environ["SMCFAST_RUN"] = json.dumps({**told, "pid": os.getpid()})
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(_STARTED) + (os.pathsep + path if path else "")
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    os.execv(sys.executable, [sys.executable, *flags, *words])
    raise AssertionError("a process that has become another one does not go on")
