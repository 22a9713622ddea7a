"""Whose processes may share memory: in a user namespace, nobody is everybody."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from smcfast import SmcConfig
from smcfast.users import NOBODY, allowed_uids

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel
    from support.child import Child


def ask(_parent: Channel) -> list[int]:
    """Child: who is allowed, if the configuration names nobody and another one."""
    return sorted(allowed_uids(SmcConfig(allow_uids=(7, NOBODY))))


def test_where_every_user_is_known_nobody_is_a_user() -> None:
    assert set(ask(None)) == {os.geteuid(), 7, NOBODY}  # type: ignore[arg-type]


@pytest.mark.parametrize(("options", "own"), [(["--map-root-user"], {0}), ([], set())], ids=["mapped", "unmapped"])
def test_in_a_user_namespace_nobody_could_be_anybody(
    spawn: Callable[..., Child], options: list[str], own: set[int]
) -> None:
    """All users outside are called so, the own one included where it is not mapped."""
    within = ["unshare", "--user", *options]
    if shutil.which("unshare") is None:
        pytest.skip("user namespaces are made with unshare, which is not here")
    tried = subprocess.run([*within, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"user namespaces are refused here: {tried.stderr.strip()}")
    assert set(spawn(ask, within=within).result()) == {*own, 7}
