"""What the tests in the machine share, by what it is for:

* `hosts`: the two hosts, their addresses, interfaces and RDMA devices
* `smc`: what the kernel says of its SMC: user EIDs, link groups, links, devices, counters, the mode of each socket
* `peers`: SMC sockets of the kernel in processes of their own, told step by step what to do
* `streams`: the same for streams of smcfast
* `ours`: streams of smcfast in the test's own process, connected with either kind of peer
* `pattern`: bytes of which both ends know what they must be
* `physical`: the kernel's table of physical networks
* `clc`: the handshakes that pass the cable
* `ours`: streams of smcfast with the kernel's sockets at their other end
* `network`: what is done to the network and the kernel's settings, and undone: loss, MTU, links, captures, sysctls
* `forked`: child processes by a fork instead of a new interpreter, which takes seconds under emulation
* `perftest`: the raw verbs, by the programs of the package perftest

The fixtures are in ``tests/vm/conftest.py``.
"""
