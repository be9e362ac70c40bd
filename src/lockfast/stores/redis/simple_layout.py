"""The plain layout: one string under the name itself, set with NX and PX, compared and deleted.

Other libraries write this layout, so that a service that uses lockfast and one that uses such a
library exclude each other. It has no queue, no fence and no wake-ups: waiters poll.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.model import Busy, Capabilities, Claim, Gone, Granted, Holder, Snapshot, Who
from lockfast.stores.redis.scripts import bulk

CAPABILITIES = Capabilities(
    store="redis", across="network", fair=False, fences=False, wakes="paced"
)
# The polling interval of waiters, which no release will wake.
PACE = 0.05
GONE = Gone()


def key_of(full_name: str) -> bytes:
    """The name without its namespace: the key that other libraries use."""
    return full_name.partition(":")[2].encode()


def millis(seconds: float) -> bytes:
    return b"%d" % max(round(seconds * 1e3), 1)


def claim_payload(claim: Claim) -> bytes:
    parts = (b"1", key_of(claim.name), claim.id.encode(), millis(claim.lease))
    return b"".join(map(bulk, parts))


def release_payload(claim: Claim) -> bytes:
    return b"".join(map(bulk, (b"1", key_of(claim.name), claim.id.encode())))


def renewal_payload(claims: Sequence[Claim]) -> tuple[bytes, int]:
    parts = [b"%d" % len(claims)]
    parts += [key_of(claim.name) for claim in claims]
    for claim in claims:
        parts += [claim.id.encode(), millis(claim.lease)]
    return b"".join(map(bulk, parts)), len(parts)


def answer(claim: Claim, kind: int, rest: int) -> Granted | Busy | Gone:
    if kind == 1:
        return Granted(0, claim.lease)
    if kind == 3:
        return GONE
    if kind != 0:
        raise ValueError
    return Busy(min(PACE, rest / 1e3) if rest > 0 else PACE, 0)


def seen(reply: Any, claims: Sequence[Claim], fences: Sequence[int]) -> list[Granted | Busy | Gone]:
    """Parse the reply to `renewal_payload`."""
    twos = zip(reply[::2], reply[1::2], strict=True)
    return [answer(claim, *two) for two, claim in zip(twos, claims, strict=True)]


def snapshot(full_name: str, rest: int) -> Snapshot:
    """A snapshot from PTTL's reply, ``rest``: the key does not tell who holds the lock."""
    if rest == -2:
        return Snapshot(full_name, 1)
    who = Who("unknown", 0, "a plain lock does not record its holder")
    return Snapshot(full_name, 1, (Holder(who, 0, 1, 0.0, max(rest, 0) / 1e3),))
