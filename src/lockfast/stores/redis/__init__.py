"""Redis and Valkey, one server: a Lua script per verb decides, pub/sub wakes the waiters."""

from lockfast.errors import ConfigurationError

try:
    import hiredis  # noqa: F401
    import redis.asyncio  # noqa: F401
except ImportError as missing:
    raise ConfigurationError(
        f"Redis needs a client library that is not installed ({missing.name}): "
        "pip install 'lockfast[redis]'"
    ) from None
