"""Parse the server's replies without trusting them: something other than Redis may have answered.

A malformed reply raises one of `MALFORMED`; the caller then closes the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.model import Busy, Claim, Differs, Gone, Granted, Holder, Snapshot, Waiter, Who

MOST_FENCE = 2**53  # Lua's numbers are exact up to here
GONE = Gone()
_new = tuple.__new__  # a named tuple's, without the wrapper for keywords: this path is hot
# Exceptions that parsing a reply of another shape may raise.
MALFORMED = (TypeError, ValueError, IndexError, KeyError, AttributeError)


def granted(fence: Any, length: Any, lease: float) -> Granted:
    """A grant, if it is plausible: never for longer than the claim's lease."""
    if type(fence) is int and 0 < fence < MOST_FENCE and 0 < length <= lease * 1e6 + 1:
        return _new(Granted, (fence, length / 1e6))
    raise ValueError


def busy(after: Any, fence: Any) -> Busy:
    if type(fence) is int and 0 <= fence < MOST_FENCE:
        return Busy(after / 1e6, fence)
    raise ValueError


def claimed(reply: Any, lease: float) -> Granted | Busy | Differs:
    """The reply to a claim: just the fence, as text, or three numbers."""
    if type(reply) is bytes:
        if reply.isdigit() and 0 < (fence := int(reply)) < MOST_FENCE:
            return _new(Granted, (fence, lease))
    elif type(reply) is list:
        kind, first, second = reply
        if kind == 1:
            return granted(first, second, lease)
        if kind == 0:
            return busy(first, second)
        if kind == 2 and type(first) is int:
            return Differs(first)
    raise ValueError


def renewed(known: Any, fence: int, lease: float) -> Granted | Gone:
    if type(known) is not int:
        raise ValueError
    return Granted(fence, lease) if known else GONE


def seen_held(reply: Any, claims: Sequence[Claim], fences: Sequence[int]) -> list[Granted | Gone]:
    """The reply to the renewal of holds."""
    return [
        renewed(known, fence, claim.lease)
        for known, claim, fence in zip(reply, claims, fences, strict=True)
    ]


def seen_waiting(
    reply: Any, claims: Sequence[Claim], fences: Sequence[int]
) -> list[Granted | Busy | Gone]:
    """The reply to the refresh of waiters."""
    threes = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    return [refreshed(three, claim.lease) for three, claim in zip(threes, claims, strict=True)]


def refreshed(three: Sequence[Any], lease: float) -> Granted | Busy | Gone:
    kind, first, second = three
    if kind == 1:
        return granted(first, second, lease)
    if kind == 0:
        return busy(first, second)
    return gone(kind)


def gone(kind: Any) -> Gone:
    if kind != 3:
        raise ValueError
    return GONE


def seen(name: str, now: Any, holds: Any, queue: Any, crossed: Any = 0) -> Snapshot:
    holders, waiters, slots = [], [], 0
    for text in holds:
        fence, ends, since, _, take, size, _, who = text.decode().split(" ", 7)
        slots = int(size)
        holders.append(
            Holder(
                Who.decoded(who),
                int(fence),
                int(take),
                int(since) / 1e6,
                (int(ends) - now) / 1e6,
            )
        )
    for text in queue:
        fair, _, since, _, take, size, _, who = text.decode().split(" ", 7)
        slots = slots or int(size)
        waiters.append(Waiter(Who.decoded(who), int(take), int(since) / 1e6, fair == "1"))
    holders.sort(key=lambda holder: holder.fence)
    return Snapshot(name, slots, tuple(holders), tuple(waiters), now / 1e6, crossed == 1)
