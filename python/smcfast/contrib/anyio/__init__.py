"""smcfast for programs of anyio: byte streams and listeners, on anyio's asyncio backend.

What works on anyio's own TCP streams works on these: `TLSStream`, `BufferedByteReceiveStream`, `StapledByteStream`...
"""

from smcfast.contrib.anyio.connecting import connect_smc
from smcfast.contrib.anyio.listener import SmcListener, create_smc_listener
from smcfast.contrib.anyio.stream import SmcAttribute, SmcStream

__all__ = ["SmcAttribute", "SmcListener", "SmcStream", "connect_smc", "create_smc_listener"]
