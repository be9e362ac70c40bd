"""Test support for your own tests: a store in memory on a virtual clock, and holds you can lose.

pytest finds the fixtures ``lockfast_clock``, ``lockfast_client`` and ``lockfast_aio_client`` by
itself. Without pytest, use `VirtualClock`, `client`, `aio_client` and `lose`. No other part of
lockfast imports this package.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockfast.testing.kit import VirtualClock, aio_client, client, lose

__all__ = ["VirtualClock", "aio_client", "client", "lose"]


def __getattr__(name: str) -> Any:
    # Imported on first use: pytest imports this package in every run, for the fixtures.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lockfast.testing import kit

    return getattr(kit, name)
