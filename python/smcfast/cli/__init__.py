"""The command line: ``python -m smcfast <command>``; one file for each command."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import smcfast
from smcfast.cli import demo, option, proxy, run

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {"demo": demo, "option": option, "proxy": proxy, "run": run}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit code.

    0 is success, 1 a result that was not hoped for, 2 misuse, 130 the user's interrupt.
    """
    parser = argparse.ArgumentParser(prog="python -m smcfast", description=smcfast.__doc__)
    parser.add_argument("--version", action="version", version=f"smcfast {smcfast.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(command)
    options = parser.parse_args(arguments)
    try:
        code: int = COMMANDS[options.command].run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code
