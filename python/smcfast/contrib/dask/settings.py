"""What Dask's configuration says of ``smc://``."""

from __future__ import annotations

from typing import Any, Final

import dask

from smcfast import SmcConfig

_KEY: Final = "distributed.comm.smc"


def config() -> SmcConfig:
    """The fields of `SmcConfig` under ``distributed.comm.smc``; the others as ever from variables and defaults.

    :raises SmcConfigError: a value is out of its range.
    :raises TypeError: there is no such field.
    """
    fields = dask.config.get(_KEY, default=None) or {}
    return SmcConfig(**{name.replace("-", "_"): _frozen(value) for name, value in fields.items()})


def check_encryption(address: str, arguments: dict[str, Any]) -> None:
    """:raises RuntimeError: `arguments` ask for encryption, and there is none."""
    if arguments.get("require_encryption"):
        raise RuntimeError(f"smc:// does not encrypt, and encryption is required: refusing {address!r}")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
