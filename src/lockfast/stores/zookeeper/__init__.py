"""ZooKeeper: a claim is a sequential node, its session is its lease, its place is its number."""
