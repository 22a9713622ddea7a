"""Children by a fork: what is said of a child elsewhere holds for them, too."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from support.child import ChildFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel
    from vm.support.forked import ForkedChild

    Spawn = Callable[..., ForkedChild]


def misbehave(_: Channel, how: str) -> None:
    """Child: end badly in the way that is asked for."""
    if how == "raise":
        raise ValueError("so be it")
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "complain":
        print("a complaint", file=sys.stderr)
    if how == "warn":
        warnings.warn("no more", ResourceWarning, stacklevel=1)
    if how == "hang":
        signal.pause()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "status 1(.|\n)*so be it"),
        ("die", "status -9"),
        ("complain", "a complaint"),
        ("warn", "ResourceWarning: no more"),
        ("hang", "hangs"),
    ],
)
def test_a_child_that_ends_badly_is_an_error(spawn: Spawn, how: str, said: str) -> None:
    child = spawn(misbehave, how)
    limit: dict[str, Any] = {"limit": 0.5} if how == "hang" else {}
    with pytest.raises(ChildFailedError, match=said):
        child.result(**limit)


def look(parent: Channel) -> list[Any]:
    """Child: what it has, and what it was given."""
    parent.send(os.getpid())
    return [os.environ["GIVEN"], os.listdir("/proc/self/fd"), sys.stdin.read()]


def test_a_child_has_what_it_was_given_and_nothing_else(spawn: Spawn) -> None:
    with open(os.devnull) as ours:
        os.dup2(ours.fileno(), 99)
    try:
        child = spawn(look, env={"GIVEN": "this"})
        assert child.receive() == child.pid != os.getpid()
        given, descriptors, read = child.result()
        assert (given, read) == ("this", "")
        assert "99" not in descriptors
    finally:
        os.close(99)
