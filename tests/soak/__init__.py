"""Long tests: what must hold over thousands of rounds. ``python -m soak``, which ``make soak`` calls, runs all of them.

`kill` ends processes at any moment, `simulate` runs the protocol's machines for a million connections, `traffic` lets real
processes exchange random bytes while they are stopped, killed, starved and lied to. What each does follows from a seed.
"""
