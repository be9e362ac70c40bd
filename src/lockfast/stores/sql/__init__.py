"""Shared parts of the SQL stores: the law of slots over two tables, unlocked between round trips.

`book` presents one name's rows to the law; `store` implements the verbs; `threads` and `tasks`
pool connections for the sync and the async API. A dialect (`postgres/`, `mysql/`) provides the
statements, the connections and the wake-up listener.
"""
