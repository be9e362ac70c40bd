"""The simulator: the production core, keeper and memory store in virtual time, with faults.

- `world`: virtual time, and the processes that run in it.
- `network`: the simulated server and the network between it and the clients. `redis` runs the
  production Lua instead of the memory store, `replicas` adds failover, `quorum` is Redlock.
- `scenario`: one run of a seed. `kinds` draws which kinds of names the seed uses; `work` and its
  neighbors (`work_locks`, `work_permits`, `work_readwrite`, `work_multi`, `work_election`,
  `work_latches`) are the clients' programs for each kind.
- `witness`: the promises that hold for every name. `rules` and its neighbors (`witness_permits`,
  `witness_readwrite`, `witness_multi`, `witness_election`, `witness_latches`) add those of a kind.
- `bugs`, `primitive_bugs`, `latch_bugs`, `lua_bugs` and `replica_bugs`: planted bugs, which prove
  that the witness can detect them.

A failing seed replays exactly: ``python -m lab.simulate --first SEED --seeds 1 -v``.
"""
