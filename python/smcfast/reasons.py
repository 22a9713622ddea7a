"""Why a connection is TCP: one table, and a counter for each row.

The codes of the protocol (CLC diagnoses) come from the native core. The local ones below have the form ``0x0A00_00NN``
and are never sent on the wire: they say why no handshake took place at all.
"""

from __future__ import annotations

from smcfast import _native
from smcfast.errors import Fallback

PEER_PLAIN = 0x0301_0000
LOCAL = 0x0A00
"""The upper half of every local code."""
DECLINED_NO_DEVICE = 0x0303_0007
DECLINED_VERSION = 0x030C_0000

_LOCAL_TEXTS = {
    "platform": "this platform has no SMC path (Linux and the native core are needed)",
    "disabled": "the configuration switches every SMC path or every discovery off",
    "tls": "TLS was asked for, and TLS runs over TCP",
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
}
"""Name to text; the position in the table is the code, so rows are only ever appended."""

_TABLE = {
    name: Fallback((LOCAL << 16) + 1 + position, name, text)
    for position, (name, text) in enumerate(_LOCAL_TEXTS.items())
}
_TABLE["peer_plain"] = Fallback(PEER_PLAIN, "peer_plain", "the peer did not announce SMC")


def reason(name: str) -> Fallback:
    """The row called `name`.

    :raises KeyError: there is none; names are part of the program, so this is a bug.
    """
    return _TABLE[name]


def explained(name: str, text: str) -> Fallback:
    """The row called `name` with a `text` that says more than the table does."""
    row = _TABLE[name]
    return row._replace(text=text) if text else row


def diagnosis(code: int, text: str = "") -> Fallback:
    """The reason for a CLC diagnosis `code`; `text`, when given, says more than the table does."""
    if code == PEER_PLAIN:
        return _TABLE["peer_plain"]
    name, meaning = _native.diagnoses().get(code, (f"diagnosis_{code:08x}", "an unknown diagnosis"))
    return Fallback(code, name.lower(), text or meaning)


def names() -> tuple[str, ...]:
    """Every reason that can be counted, local ones first."""
    return (*_TABLE, *(name.lower() for code, (name, _) in _native.diagnoses().items() if code != PEER_PLAIN))
