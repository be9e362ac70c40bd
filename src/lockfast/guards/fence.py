"""Shared checks of all guards: validate a fence, and refuse a stale one."""

from __future__ import annotations

from lockfast.errors import ConfigurationError, StaleFence

MAX_FENCE = 2**63 - 1  # the largest BIGINT


def fence_of(hold: object) -> int:
    """Return the fence of a hold, or the int itself.

    A bool, float or str is refused and never converted: a rounded or misread fence would let a
    stale writer in.
    """
    fence = hold if isinstance(hold, int | float | str) else getattr(hold, "fence", hold)
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise ConfigurationError(f"a fence must be a hold or an int, not {fence!r}")
    if not 0 <= fence <= MAX_FENCE:
        raise ConfigurationError(f"a fence must be between 0 and 2**63 - 1, not {fence}")
    return int(fence)


def refuse_if_stale(name: str, fence: int, seen: int | None) -> None:
    """Raise `StaleFence` unless the resource has seen only ``fence`` and lower fences."""
    if seen is None:
        reason = f"fence {fence} was refused: the row that records the highest fence is gone"
    elif seen > fence:
        reason = (
            f"fence {fence} is stale: the resource has seen {seen}, so another holder took over"
        )
    else:
        return
    raise StaleFence(
        f"{name!r}: {reason}. Nothing was written. Do not retry with this hold: stop, or acquire "
        "the lock again and start from the current data",
        name=name,
        fence=fence,
        seen=seen,
    )
