"""The simulator: the production core, keeper and memory store in virtual time, with faults.

`world` is time and processes, `network` is what lies between clients and the store (`redis`: the
production Lua), `scenario` makes one run of a seed. `cast` says which kinds of names it is about;
what is done with each is in `work_locks`, `work_permits`, `work_readwrite`, `work_multi`,
`work_election` and `work_gates`. `witness` says what must be true of every name, `rules` and
`witness_permits`, `witness_readwrite`, … what must be true of its kind. `bugs`, `primitive_bugs`,
`gate_bugs` and `lua_bugs` prove that the witness can see.
A seed that fails replays exactly: ``python -m lab.simulate --first SEED --seeds 1
-v``.
"""
