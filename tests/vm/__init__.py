"""Tests against software RoCE and the kernel's own SMC, in a machine that ``boot.py`` boots: ``make test-vm``."""
