"""Redis and Valkey, one node: one Lua script per verb is the truth, pub/sub is the doorbell."""
