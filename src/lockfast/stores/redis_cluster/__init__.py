"""Redis Cluster: names spread over several servers, by the slot of their keys.

A node is spoken to as a single server is, by the same backend and the same transports. What is here
is who serves which name (`slots`), how to find that out and follow a name that moves (`routing`),
what may travel together (`node`), and where bells are heard (`ears`).
"""
