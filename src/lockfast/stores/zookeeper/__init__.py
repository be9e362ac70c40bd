"""The ZooKeeper store: a claim is a node, its number the queue position, its session the lease."""
