"""Redis and Valkey, one server: a Lua script per verb decides, pub/sub wakes the waiters."""
