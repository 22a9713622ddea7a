"""``smc://`` addresses for Dask's distributed scheduler, which finds this package by its entry point."""

from smcfast.contrib.dask.backend import SmcBackend
from smcfast.contrib.dask.comm import SmcComm
from smcfast.contrib.dask.connector import SmcConnector
from smcfast.contrib.dask.listener import SmcListener

__all__ = ["SmcBackend", "SmcComm", "SmcConnector", "SmcListener"]
