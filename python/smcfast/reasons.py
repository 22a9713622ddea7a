"""Why a connection is TCP: one table.

The codes of the protocol (CLC diagnoses) come from the native core. The local ones below have the form ``0x0A00_00NN``
and are never sent on the wire: they say why no handshake took place at all.
"""

from __future__ import annotations

import errno

from smcfast import _native
from smcfast.errors import Fallback

PEER_PLAIN = 0x0301_0000
LOCAL = 0x0A00
"""The upper half of every local code."""
DECLINED_MEMORY = 0x0101_0000
DECLINED_NO_DEVICE = 0x0303_0007
DECLINED_VERSION = 0x030C_0000
PEER_DECLINED = 0x0500_0000
"""Told by the kernel when it was the peer who declined."""
DECLINED = (
    DECLINED_MEMORY,
    0x0201_0000,
    0x0303_0000,
    0x0303_0001,
    0x0303_0002,
    0x0303_0003,
    0x0303_0006,
    DECLINED_NO_DEVICE,
    0x0303_0008,
    0x0303_0009,
    0x0303_000A,
    0x0303_000B,
    0x0304_0000,
    0x0305_0000,
    0x0307_0000,
    0x030A_0000,
    DECLINED_VERSION,
    0x030D_0000,
    0x0400_0000,
    0x0999_0000,
    0x0999_0001,
    0x0999_0002,
    0x0999_0003,
)
"""The CLC diagnoses with which this version declines."""

_LOCAL_TEXTS = {
    "platform": "this platform has no SMC path (Linux and the native core are needed)",
    "disabled": "the configuration switches every SMC path or every discovery off",
    "tls": "not given any more: TLS runs over every path",
    "sock_given": "the socket was already connected, so discovery was skipped",
    "not_inet": "the socket is neither IPv4 nor IPv6",
    "no_sock_diag": "the kernel refuses socket lookups (sock_diag)",
    "uid": "the peer runs as a user that is not allowed",
    "version": "the peer speaks another version of the private protocol",
    "protocol": "the peer broke the private protocol",
    "peer_stopped": "the peer stopped the set-up before it began",
    "discovery_timeout": "nobody answered within the handshake time-out",
    "server_spoke_first": "the server sent application bytes instead of an answer",
    "accepted_plain": "the listener is known, but what accepted the connection does not answer",
    "listener_remembered": "this listener cost a fruitless wait in the last 30 s",
    "destination_remembered": "this assumed destination did not speak SMC in the last 10 min",
    "name_taken": "another process holds the rendezvous name of this socket",
    "limit": "too many handshakes are pending",
    "resources": "no file descriptor or memory was left for the set-up",
    "handshake_failed": "the handshake broke off",
    "refused": "the system refuses a call that the set-up needs",
    "rendezvous_dir": "the shared directory cannot be used",
    "no_rdma_device": "this machine has no RDMA device",
    "rdma_device": "no RDMA device is on the network of this connection",
    "rdma_port": "the RDMA device's port is not active",
    "rdma_gid": "the RDMA device has no GID that fits this connection",
    "rdma_library": "libibverbs cannot be used",
    "kernel_smc": "the kernel offers no SMC sockets",
    "kernel_silent": "the kernel does not tell why its SMC socket runs as TCP (smc_diag)",
    "option_unavailable": "the TCP option cannot be used here",
    "option_no_room": "the TCP header had no room for the option",
    "option_unfit": "Fast Open, Multipath TCP or a signature in the TCP header leaves no place for the option",
    "option_cookie": "the SYN was answered with a SYN cookie, which cannot tell what options it had",
    "option_dropped": "a SYN with the option was not answered within 200 ms, and one without it was",
    "option_unanswered": "the client announced SMC by the option, and began no handshake",
    "peer_elsewhere": "the peer is not on this host, and there is no RDMA",
    "not_chosen": "the patterns of smcfast run leave this address alone",
}
"""Name to text; the position in the table is the code, so rows are only ever appended."""

_TABLE = {
    name: Fallback((LOCAL << 16) + 1 + position, name, text)
    for position, (name, text) in enumerate(_LOCAL_TEXTS.items())
}
_TABLE["peer_plain"] = Fallback(PEER_PLAIN, "peer_plain", "the peer did not announce SMC")
_BY_CODE = {row.code: row for row in _TABLE.values()}

_TROUBLE = {
    errno.EADDRINUSE: "name_taken",
    errno.ENOTCONN: "peer_plain",
    errno.ENOSYS: "refused",
    errno.EAFNOSUPPORT: "refused",
}
"""The connection may be lost at any time; a peer that has gone has not announced anything. Sandboxes refuse calls."""


def reason(name: str) -> Fallback:
    """The row called `name`.

    :raises KeyError: there is none; names are part of the program, so this is a bug.
    """
    return _TABLE[name]


def trouble(error: OSError) -> Fallback:
    """The row for an `error` of the own system before the handshake began."""
    # The native core's errors have their class and no number.
    otherwise = "refused" if isinstance(error, PermissionError) else "resources"
    return _TABLE[_TROUBLE.get(error.errno or 0, otherwise)]


def explained(name: str, text: str) -> Fallback:
    """The row called `name` with a `text` that says more than the table does."""
    row = _TABLE[name]
    return row._replace(text=text) if text else row


def diagnosis(code: int, text: str = "") -> Fallback:
    """The reason for a CLC diagnosis `code`; `text`, when given, says more than the table does."""
    if code == PEER_PLAIN:
        return _TABLE["peer_plain"]
    name, meaning = _native.diagnoses().get(code, (f"diagnosis_{code:08x}", "an unknown diagnosis"))
    return Fallback(code, name, text or meaning)


def known(code: int) -> Fallback:
    """The reason with this `code`, local or a CLC diagnosis."""
    return _BY_CODE.get(code) or diagnosis(code)


def names() -> tuple[str, ...]:
    """The reasons that `smcfast.stats` always has, in their fixed order: the local ones, then those of CLC.

    Names that come from `diagnosis` and are not here are those of a peer that is not of this version.
    """
    known = _native.diagnoses()
    return (*_TABLE, *(known[code][0] for code in DECLINED if code in known))
