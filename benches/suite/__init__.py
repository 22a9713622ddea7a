"""The benchmark suite: what is measured, between which processes, against what, and how it is judged and shown."""
