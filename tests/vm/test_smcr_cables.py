"""Two hosts with two devices each: physical networks decide which one a connection takes, and not its interface."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from vm.conftest import let_go
from vm.support import network, physical, smc
from vm.support.hosts import A, B
from vm.support.ours import CONFIG, ROLES, Meeting, Pair, meeting
from vm.support.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from vm.support.hosts import Host
    from vm.support.ours import Role
    from vm.support.peers import KernelPeer

    MakePeer = Callable[[], KernelPeer]
    Cable = tuple[Host, Host]

SEED, LENGTH = 37, 200_000


@pytest.fixture
def loop_kind() -> str:
    """The choice is made before any loop has a part in it."""
    return "asyncio"


@pytest.fixture
def second() -> Iterator[Cable]:
    """The other cable. No socket of the kernel's is on it when its devices are removed: the kernel does not survive that."""
    with network.another_cable() as hosts:
        yield hosts
        let_go()
        names = {host.device for host in hosts}
        network.wait_until(
            lambda: not any(each.device in names for each in smc.connections()), "end of the kernel's connections"
        )


async def check(pair: Pair, cable: Cable) -> None:
    """The connection is SMC-R over this cable, smcfast at host a."""
    await pair.assert_smc_r()
    ours, theirs = cable
    assert (pair.info.device, pair.info.gid) == (ours.device, ours.gid.replace(":", ""))
    assert (await pair.about()).device == theirs.device
    sending = pair.kernel.start("send", pair.sock, SEED, LENGTH)
    Pattern(SEED).check(0, await pair.reader.readexactly(LENGTH))
    await pair.kernel.finish(sending)


async def ended(both: Meeting, pair: Pair) -> None:
    """Both ends of it are closed."""
    await pair.kernel.do("close", pair.sock)
    assert await pair.reader.read() == b""
    await pair.close()


@pytest.mark.parametrize("role", ROLES)
async def test_the_kernels_table_decides_at_both_ends(second: Cable, kernel_peer: MakePeer, role: Role) -> None:
    ours, theirs = second
    entries = [physical.entry("NET1", A.interface, ours.device), physical.entry("NET2", B.interface, theirs.device)]
    async with meeting(role, kernel_peer()) as both:
        with physical.table(*entries):
            pair = await both.connect()
            assert pair.writer.get_extra_info("sockname")[0] == A.address
            await check(pair, second)
            await ended(both, pair)
        pair = await both.connect()
        await check(pair, (A, B))
        await ended(both, pair)


async def test_the_own_table_decides_where_the_kernel_has_none(
    second: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smcfast").mkdir()
    lines = [
        f"{name} {host.interface}\n{name} {other.device}:1\n"
        for name, host, other in zip(("NET1", "NET2"), (A, B), second, strict=True)
    ]
    (tmp_path / "smcfast" / "pnet").write_text("".join(lines))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    server = await smcfast.start_smc_server(lambda *pair: accepted.put(pair), B.address, 0, config=CONFIG)
    port = server.sockets[0].getsockname()[1]
    client = await smcfast.open_smc_connection(B.address, port, local_addr=(A.address, 0), config=CONFIG)
    served = await accepted.get()
    for (_, writer), host in zip((client, served), second, strict=True):
        info = writer.get_extra_info("smc")
        assert (info.path, info.device, info.gid) == ("smc-r", host.device, host.gid.replace(":", ""))
    client[1].write(Pattern(SEED).take(0, LENGTH))
    Pattern(SEED).check(0, await served[0].readexactly(LENGTH))
    for _, writer in (client, served):
        writer.close()
        await writer.wait_closed()
    server.close()


@pytest.mark.parametrize("role", ROLES)
async def test_a_device_that_does_not_fit_is_skipped_with_a_reason(
    second: Cable, kernel_peer: MakePeer, role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    """Both devices of a host are on one physical network, and the first has no link."""
    ours, theirs = second
    entries = [
        physical.entry(name, interface, device)
        for name, interface, devices in (
            ("NET1", ours.interface, (A.device, ours.device)),
            ("NET2", theirs.interface, (B.device, theirs.device)),
        )
        for interface, device in ((interface, ""), *(("", device) for device in devices))
    ]
    caplog.set_level(logging.DEBUG, "smcfast")
    hosts = second if role == "client" else (theirs, ours)
    with network.down(A), physical.table(*entries):
        async with meeting(role, kernel_peer(), hosts=hosts) as both:
            pair = await both.connect()
            await check(pair, second)
            assert f"{A.device} port 1 is DOWN, not ACTIVE" in caplog.text
            await ended(both, pair)
