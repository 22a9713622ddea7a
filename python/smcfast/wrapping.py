"""What `smcfast run` does to asyncio and uvloop in the program that it has begun.

Connections and servers of streams and protocols become those of smcfast, unless a pattern leaves them alone. Methods of the
classes are replaced, so whatever makes a loop, and whoever calls it, is served.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import ipaddress
import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from smcfast import addresses, connect, counts, invited, patterns, sendfile, server, transport
from smcfast.held import HeldSocket
from smcfast.reasons import reason
from smcfast.transport import RingTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import ModuleType

_INET: Final = (socket.AF_INET, socket.AF_INET6)


class Choice(NamedTuple):
    """Which addresses take part."""

    only: tuple[patterns.Pattern, ...]
    """None of them is every address."""
    never: tuple[patterns.Pattern, ...]

    def takes(self, host: str | None, address: str, port: int) -> bool:
        """Does the end at `address` and `port`, which the program called `host`?"""
        if self.only and not patterns.any_matches(self.only, host, address, port):
            return False
        return not patterns.any_matches(self.never, host, address, port)

    async def takes_host(self, host: Any, port: Any) -> bool:
        """Does the end that the program called `host`, whose address may have to be looked up?"""
        if not (self.only or self.never):
            return True
        if not isinstance(host, str) or not host:  # a server at every address, or at several
            hosts = [each for each in host or () if isinstance(each, str)] or ["::"]
            return any([await self.takes_host(each, port) for each in hosts])
        try:
            ipaddress.ip_address(host.partition("%")[0])
            found = [(host, int(port or 0))]
        except ValueError:
            infos = await addresses.resolve(asyncio.get_running_loop(), host, port, 0, 0, 0)
            found = [(info[4][0], info[4][1]) for info in infos]
        return any(self.takes(host, *each) for each in found)


_choice = Choice((), ())
_left_alone = contextvars.ContextVar("left alone", default=False)
"""Is asyncio connecting a socket for a connection that is not ours?"""


def wrap(module: ModuleType, options: dict[str, Any]) -> None:
    """Put smcfast into asyncio, or into uvloop."""
    global _choice
    if module.__name__ == "uvloop":
        _wrap_loop(module.Loop, module.Loop)
        return
    _choice = Choice(tuple(map(patterns.parse, options["only"])), tuple(map(patterns.parse, options["never"])))
    transport.write_high = options["send_size"]
    _wrap_loop(asyncio.BaseEventLoop, asyncio.SelectorEventLoop)
    for place in (asyncio, asyncio.streams):
        _replace(place, "open_connection", _open_connection)
        _replace(place, "start_server", _start_server)
    if not options["quiet"]:
        atexit.register(_say_farewell, options)


def _wrap_loop(loop: type, selector_loop: type) -> None:
    _replace(loop, "create_connection", _create_connection)
    _replace(loop, "create_server", _create_server)
    _replace(loop, "sendfile", _sendfile)
    _replace(selector_loop, "sock_connect", _sock_connect)
    for name in ("sock_sendall", "sock_recv", "sock_recv_into", "sock_sendfile"):
        _replace(selector_loop, name, _using)


def _replace(place: Any, name: str, wrapper: Callable[..., Any]) -> None:
    own = getattr(place, name)

    @functools.wraps(own)
    def replaced(*args: Any, **options: Any) -> Any:
        return wrapper(own, *args, **options)

    setattr(place, name, replaced)


# What takes their place; each gets the one that was there as its first argument.


async def _create_connection(
    own: Callable[..., Coroutine[Any, Any, Any]],
    loop: asyncio.AbstractEventLoop,
    factory: Callable[[], asyncio.BaseProtocol],
    host: Any = None,
    port: Any = None,
    **options: Any,
) -> Any:
    if not await _is_chosen(loop, host, port, options.get("sock")):
        token = _left_alone.set(True)
        try:
            return await own(loop, factory, host, port, **options)
        finally:
            _left_alone.reset(token)
    return await connect.create_smc_connection(factory, host, port, **options)


async def _open_connection(own: Callable[..., Any], host: Any = None, port: Any = None, **options: Any) -> Any:
    if not await _is_chosen(asyncio.get_running_loop(), host, port, options.get("sock"), counted=False):
        return await own(host, port, **options)
    return await connect.open_smc_connection(host, port, **options)


async def _create_server(
    own: Callable[..., Coroutine[Any, Any, Any]],
    loop: asyncio.AbstractEventLoop,
    factory: Callable[[], asyncio.BaseProtocol],
    host: Any = None,
    port: Any = None,
    **options: Any,
) -> Any:
    if factory is server.NeverMade or not await _is_served(host, port, options.get("sock")):
        return await own(loop, factory, host, port, **options)
    return await server.create_smc_server(factory, host, port, **options)


async def _start_server(
    own: Callable[..., Any], callback: Callable[..., Any], host: Any = None, port: Any = None, **options: Any
) -> Any:
    if not await _is_served(host, port, options.get("sock")):
        return await own(callback, host, port, **options)
    return await server.start_smc_server(callback, host, port, **options)


async def _sendfile(
    own: Callable[..., Coroutine[Any, Any, int]],
    loop: asyncio.AbstractEventLoop,
    transport: Any,
    file: Any,
    offset: int = 0,
    count: int | None = None,
    *,
    fallback: bool = True,
) -> int:
    if isinstance(transport, RingTransport):
        return await sendfile.sendfile(transport, file, offset, count, fallback)
    return await own(loop, transport, file, offset, count, fallback=fallback)


async def _sock_connect(
    own: Callable[..., Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop, sock: socket.socket, address: Any
) -> None:
    """What a library connects by itself may be given to create_connection next: have the peer look for us."""
    if not _left_alone.get() and _is_inet(sock) and _is_numeric(address) and _choice.takes(None, *address[:2]):
        await invited.connecting(sock, address, lambda: own(loop, sock, address))
    else:
        await own(loop, sock, address)


def _using(own: Callable[..., Any], loop: asyncio.AbstractEventLoop, sock: Any, *args: Any, **options: Any) -> Any:
    """The program uses a socket by itself: it stays as it is."""
    invited.forget(sock)
    return own(loop, sock, *args, **options)


def _is_inet(sock: Any) -> bool:
    return isinstance(sock, socket.socket) and sock.family in _INET and sock.type == socket.SOCK_STREAM


def _is_numeric(address: Any) -> bool:
    try:
        ipaddress.ip_address(address[0].partition("%")[0])
    except (ValueError, TypeError, AttributeError):
        return False
    return isinstance(address[1], int)


async def _is_chosen(loop: asyncio.AbstractEventLoop, host: Any, port: Any, sock: Any, *, counted: bool = True) -> bool:
    """Is this client's connection ours? One that a pattern leaves alone is counted as such."""
    if isinstance(sock, HeldSocket) or loop is not asyncio.get_running_loop():
        return False  # smcfast's own call
    if sock is not None:
        if not _is_inet(sock):
            return False
        chosen = _peer_is_chosen(sock)
    else:
        chosen = await _choice.takes_host(host, port)
    if not chosen and counted:
        counts.count_fallback(reason("not_chosen"), forbidden=False)
    return chosen


def _peer_is_chosen(sock: socket.socket) -> bool:
    try:
        return _choice.takes(None, *sock.getpeername()[:2])
    except OSError:
        return False  # asyncio's words for what is not connected


async def _is_served(host: Any, port: Any, sock: Any) -> bool:
    """Is this server ours?"""
    if sock is None:
        return await _choice.takes_host(host, port)
    return _is_inet(sock) and _choice.takes(None, *sock.getsockname()[:2])


def _say_farewell(options: dict[str, Any]) -> None:
    """One line at the end; of a child, only if it has something to tell."""
    stats = counts.stats()
    if os.getpid() != options["pid"] and not any((*stats["connections"].values(), stats["forbidden"], stats["failed"])):
        return
    if options["json"]:
        told = {"paths": stats["connections"], "fallbacks": counts.reasons_of(stats), "forbidden": stats["forbidden"]}
        text = json.dumps({"pid": os.getpid(), **told, "failed": stats["failed"]})
    else:
        text = f"smcfast[{os.getpid()}]: connections: {counts.line(stats)}"
    with contextlib.suppress(OSError, ValueError):  # stderr may be gone
        print(text, file=sys.stderr, flush=True)
