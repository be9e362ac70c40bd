"""Wake-ups on the wire: a channel per wake address; messages 'id' or 'id fence lease-in-µs'."""

from __future__ import annotations

from typing import Any

from lockfast.model import Granted
from lockfast.stores.wakeups import Wakeups


def channel_of(wake_address: str) -> str:
    return f"lf:wake:{wake_address}"


def deliver(push: Any, wakeups: Wakeups) -> None:
    """Deliver the wake-up in a push. Others may publish on our channel: a malformed message is
    ignored."""
    if len(push) != 3 or push[0] != b"message" or not isinstance(push[2], bytes):
        return
    parts = push[2].decode(errors="replace").split(" ")
    try:
        grant = Granted(int(parts[1]), int(parts[2]) / 1e6) if len(parts) == 3 else None
    except ValueError:
        return
    wakeups.deliver(parts[0], grant)
