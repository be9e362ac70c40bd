"""The plain layout: one string under the name itself, made with SET NX PX, compared and deleted.

It is what other libraries write, so that a service that uses lockfast and one that uses theirs
exclude each other. It has no queue, no fence and no bells: who waits looks now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.model import Busy, Capabilities, Claim, Gone, Granted, Holder, Snapshot, Who
from lockfast.stores.redis.scripts import bulk

CAPABILITIES = Capabilities(
    store="redis", across="network", fair=False, fences=False, wakes="paced"
)
# How often a lock is looked at for which nobody will ring.
PACE = 0.05
GONE = Gone()


def key_of(full_name: str) -> bytes:
    """The name without our namespace: that is what others call it."""
    return full_name.partition(":")[2].encode()


def millis(seconds: float) -> bytes:
    return b"%d" % max(round(seconds * 1e3), 1)


def claim_said(claim: Claim) -> bytes:
    words = (b"1", key_of(claim.name), claim.id.encode(), millis(claim.lease))
    return b"".join(map(bulk, words))


def release_said(claim: Claim) -> bytes:
    return b"".join(map(bulk, (b"1", key_of(claim.name), claim.id.encode())))


def renew_said(claims: Sequence[Claim]) -> tuple[bytes, int]:
    words = [b"%d" % len(claims)]
    words += [key_of(claim.name) for claim in claims]
    for claim in claims:
        words += [claim.id.encode(), millis(claim.lease)]
    return b"".join(map(bulk, words)), len(words)


def answer(claim: Claim, kind: int, rest: int) -> Granted | Busy | Gone:
    if kind == 1:
        return Granted(0, claim.lease)
    if kind == 3:
        return GONE
    if kind != 0:
        raise ValueError
    return Busy(min(PACE, rest / 1e3) if rest > 0 else PACE, 0)


def seen(reply: Any, claims: Sequence[Claim], fences: Sequence[int]) -> list[Granted | Busy | Gone]:
    """What `renew_said` was answered."""
    twos = zip(reply[::2], reply[1::2], strict=True)
    return [answer(claim, *two) for two, claim in zip(twos, claims, strict=True)]


def snapshot(full_name: str, rest: int) -> Snapshot:
    """That somebody holds it is all that is written there. ``rest`` is PTTL's answer."""
    if rest == -2:
        return Snapshot(full_name, 1)
    who = Who("unknown", 0, "a plain lock does not tell who")
    return Snapshot(full_name, 1, (Holder(who, 0, 1, 0.0, max(rest, 0) / 1e3),))
