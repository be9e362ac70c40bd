"""The simulator: the production core, keeper and memory store in virtual time, with faults.

`world` is time and processes, `network` is what lies between clients and the store, `witness` says
what must be true, `scenario` makes one run of a seed, `bugs` proves that the witness can see.
A seed that fails replays exactly: ``python -m holdfast.testing.simulate --first SEED --seeds 1
-v``.
"""
