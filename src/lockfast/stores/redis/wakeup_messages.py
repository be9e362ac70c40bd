"""The bells on the wire: one channel per client; a message is 'id' or 'id fence lease-in-µs'."""

from __future__ import annotations

from typing import Any

from lockfast.model import Granted
from lockfast.stores.wakeups import Wakeups


def channel_of(wake_address: str) -> str:
    return f"lf:wake:{wake_address}"


def delivered(push: Any, wakeups: Wakeups) -> None:
    """Ring what a push says. Others may publish on our channel: what makes no sense is not for
    us."""
    if len(push) != 3 or push[0] != b"message" or not isinstance(push[2], bytes):
        return
    parts = push[2].decode(errors="replace").split(" ")
    try:
        grant = Granted(int(parts[1]), int(parts[2]) / 1e6) if len(parts) == 3 else None
    except ValueError:
        return
    wakeups.wake(parts[0], grant)
