"""`SmcBackend`: what distributed asks for the scheme ``smc``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.registry import Backend
from distributed.utils import ensure_ip, get_ip

from smcfast.contrib.dask.connector import SmcConnector
from smcfast.contrib.dask.listener import SmcListener

if TYPE_CHECKING:
    from smcfast.contrib.dask.listener import Handler


class SmcBackend(Backend):
    """Addresses are those of TCP: ``smc://host:port``, IPv6 in brackets."""

    def get_connector(self) -> SmcConnector:
        """What connects."""
        return SmcConnector()

    def get_listener(self, loc: str, handle_comm: Handler, deserialize: bool, **connection_args: Any) -> SmcListener:
        """What listens at `loc`."""
        return SmcListener(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        """The host of `loc`."""
        return self.get_address_host_port(loc)[0]

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        """Host and port of `loc`."""
        host, port = parse_host_port(loc)
        return host, port

    def resolve_address(self, loc: str) -> str:
        """`loc` with an address in the place of a name."""
        host, port = parse_host_port(loc)
        return str(unparse_host_port(ensure_ip(host), port))

    def get_local_address_for(self, loc: str) -> str:
        """The own address, without a port, by which `loc` is reached."""
        return str(unparse_host_port(get_ip(ensure_ip(self.get_address_host(loc)))))
