"""What Wireshark's dissector reads in a capture."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from vm.support import network

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WARNING: Final = 0x600000
"""The severity of a warning; an error is above."""
Fields = dict[str, list[str]]
"""The values of each field of a frame, in the order of the bytes."""


def frames(capture: Path) -> list[Fields]:
    """The frames of a capture that have a CLC message or open a connection."""
    wanted = "smc || tcp.flags.syn == 1"
    said = network.run("tshark", "-n", "-r", str(capture), "-Y", wanted, "-T", "json", "--no-duplicate-keys")
    found = []
    for packet in json.loads(said[said.index("[") :]):
        fields: Fields = {}
        for name, value in _flat("", packet["_source"]["layers"]):
            fields.setdefault(name, []).append(value)
        found.append(fields)
    return found


def complaints(frame: Fields) -> list[str]:
    """What the dissector does not like, from warnings on."""
    severe = any(int(each) >= WARNING for each in frame.get("_ws.expert.severity", []))
    malformed = [name for name in frame if "malformed" in name]
    return malformed + (frame["_ws.expert.message"] if severe else [])


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield name, ""
        for inner, each in value.items():
            yield from _flat(inner, each)
    elif isinstance(value, list):
        for each in value:
            yield from _flat(name, each)
    else:
        yield name, value
