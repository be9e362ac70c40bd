"""Redis Cluster: names spread over several servers, by the hash slot of their keys.

Each node is used like a single server, with the same store and the same transports. This package
adds the slot map (`slots`), routing and redirections (`routing`), batches within one node (`node`),
and the connections that receive wake-ups (`listeners`).
"""
