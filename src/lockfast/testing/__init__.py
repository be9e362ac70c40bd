"""For tests, yours and ours: a clock of your own, holds to lose, the simulator, the conformance
suite. Nothing in lockfast itself imports this room.

The fixtures come with ``pytest_plugins = ["lockfast.testing.fixtures"]`` in your conftest.py.
"""

from lockfast.testing.kit import VirtualClock, aio_client, client, lose

__all__ = ["VirtualClock", "aio_client", "client", "lose"]
