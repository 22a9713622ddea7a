"""The library websockets, as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apps.support.runs import PROGRAMS, asked, serving

if TYPE_CHECKING:
    from apps.support.runs import Way


def test_websockets_as_it_is(loop_kind: str, way: Way) -> None:
    """Three connections at once: short texts, fragments, big messages both ways, pings."""
    with serving(way, str(PROGRAMS / "websockets_server.py"), loop_kind) as server:
        right, client = asked(way, str(PROGRAMS / "websockets_client.py"), loop_kind, str(server.port))
    assert right == dict.fromkeys(("texts", "fragments", "big", "ping"), True)
    assert client == server.said == way.taken(3)
