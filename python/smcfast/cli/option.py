"""The TCP option with which hosts tell one another that they speak SMC: install its program, remove it, look at it.

install  keeps one program for all processes of this host, until remove or the next boot; root only
remove   takes it away; connections that are established go on
status   says what this user's processes can do, and why not more
"""

from __future__ import annotations

import argparse
import grp
import json
import os
import sys
from typing import Any

from smcfast import _native, option
from smcfast.config import SmcConfig
from smcfast.errors import Fallback, SmcConfigError

if _native.AVAILABLE:
    from smcfast import _core

HELP = "install, remove or look at the program for the TCP option of SMC"

_UNPRIVILEGED = "/proc/sys/kernel/unprivileged_bpf_disabled"
_EXAMPLES = {
    "install": "smcfast option install --group smc",
    "remove": "smcfast option remove",
    "status": "smcfast option status --json",
}
_EXITS = {
    "install": "Exit code: 0 installed, 1 not, 2 misuse.",
    "remove": "Exit code: 0 removed, 1 nothing was there or it could not be removed, 2 misuse.",
    "status": "Exit code: 0 when processes of this user can use the option, 1 when they cannot, 2 misuse.",
}
_HELPS = {
    "install": "attach the program to the root cgroup, and keep it in a BPF file system of its own",
    "remove": "detach the program, and unmount its file system",
    "status": "is it installed, for whom, and can this user use it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    for name, text in _HELPS.items():
        action = actions.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=f"Example: {_EXAMPLES[name]}\n{_EXITS[name]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        action.add_argument("--json", action="store_true", help="print the status as JSON")
        action.add_argument(
            "--directory", default=option.DIRECTORY, help="where the program is kept (default: %(default)s)"
        )
        if name == "install":
            action.add_argument(
                "--group",
                type=_group,
                metavar="G",
                help="name or number of the group that may use it (default: root alone)",
            )


def run(options: argparse.Namespace) -> int:
    """Do what is asked; the exit code."""
    if not _native.AVAILABLE:
        return _failed(options, "this platform has no native core")
    return {"install": _install, "remove": _remove, "status": _status}[options.action](options)


def _install(options: argparse.Namespace) -> int:
    try:
        _core.install_option(options.directory, options.group)
    except FileExistsError:
        return _failed(options, f"a program is installed at {options.directory} already: remove it first")
    except OSError as error:
        return _failed(options, f"not installed: {error.strerror}")
    return _tell(options, 0, f"installed at {options.directory}, for {_whom(options.group)}")


def _remove(options: argparse.Namespace) -> int:
    try:
        was_there = _core.remove_option(options.directory)
    except OSError as error:
        return _failed(options, f"not removed: {error.strerror}")
    if not was_there:
        return _failed(options, f"no program is installed at {options.directory}")
    return _tell(options, 0, "removed")


def _status(options: argparse.Namespace) -> int:
    told = _look(options.directory)
    if options.json:
        print(json.dumps(told))
    else:
        for line in _lines(told):
            print(line)
    return 0 if told["usable"] else 1


def _look(directory: str) -> dict[str, Any]:
    """What `--json` prints."""
    marks = os.path.join(directory, "marks")
    try:
        file: os.stat_result | None = os.stat(marks)
    except OSError:
        file = None
    found = option.find(directory)
    why = found if isinstance(found, Fallback) else None
    return {
        "directory": directory,
        "installed": file is not None,
        "gid": None if file is None or not file.st_mode & 0o060 else file.st_gid,
        "usable": why is None,
        "how": None if isinstance(found, Fallback) else found[1],
        "why": None if why is None else why.text,
        "unprivileged_bpf_disabled": _unprivileged_bpf_disabled(),
        "wanted": _is_wanted(),
    }


def _is_wanted() -> bool | None:
    """Does the configuration of this environment ask for it, and is there a device? None for a wrong environment."""
    try:
        return option.is_wanted(SmcConfig())
    except SmcConfigError:
        return None


def _unprivileged_bpf_disabled() -> int | None:
    try:
        with open(_UNPRIVILEGED, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _lines(told: dict[str, Any]) -> list[str]:
    where = (
        f"at {told['directory']}, for {_whom(told['gid'])}" if told["installed"] else f"no, not at {told['directory']}"
    )
    how = {"installed": "by the installed program", "own": "each process attaches a program of its own"}
    sysctl = told["unprivileged_bpf_disabled"]
    wanted = {True: "yes", False: "no: no RDMA device, or not configured", None: "a variable is wrong"}
    return [
        f"installed: {where}",
        f"this user: {how[told['how']] if told['usable'] else told['why']}",
        f"used by connections: {wanted[told['wanted']]}",
        f"kernel.unprivileged_bpf_disabled: {'not known' if sysctl is None else sysctl}",
    ]


def _whom(gid: int | None) -> str:
    if gid is None:
        return "root alone"
    try:
        return f"group {grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"group {gid}"


def _group(text: str) -> int:
    """A group by name or number.

    :raises ArgumentTypeError: there is no such group.
    """
    if text.isdecimal() and int(text) < 2**32 - 1:
        return int(text)
    try:
        return grp.getgrnam(text).gr_gid
    except KeyError:
        raise argparse.ArgumentTypeError(f"no such group: {text!r}") from None


def _tell(options: argparse.Namespace, code: int, text: str) -> int:
    print(json.dumps(_look(options.directory)) if options.json else text)
    return code


def _failed(options: argparse.Namespace, text: str) -> int:
    if options.json:
        print(json.dumps({"error": text}))
    else:
        print(text, file=sys.stderr)
    return 1
