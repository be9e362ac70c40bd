"""The ZooKeeper store: a claim is a sequential node, its session its lease, its number its position
in the queue."""
