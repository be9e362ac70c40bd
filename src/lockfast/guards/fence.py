"""What all guards share: what counts as a fence, and how a stale one is refused."""

from __future__ import annotations

from lockfast.errors import ConfigurationError, StaleFence

MAX_FENCE = 2**63 - 1  # what a BIGINT holds


def fence_of(hold: object) -> int:
    """The fence of a hold, or the int itself. A bool, a float or a text is a mistake, never
    converted: a fence that is rounded or misread would let a stale writer in."""
    fence = hold if isinstance(hold, int | float | str) else getattr(hold, "fence", hold)
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise ConfigurationError(f"a fence is a hold or its int, not {fence!r}")
    if not 0 <= fence <= MAX_FENCE:
        raise ConfigurationError(f"a fence is between 0 and 2**63 - 1, not {fence}")
    return int(fence)


def refuse_if_stale(name: str, fence: int, seen: int | None) -> None:
    """`StaleFence` unless the fence that the resource knows is ours or an older one."""
    if seen is None:
        told = f"fence {fence} was refused, and nothing is there any more that tells by which"
    elif seen > fence:
        told = f"fence {fence} is stale: {seen} was seen there already, so another holder took over"
    else:
        return
    raise StaleFence(
        f"{name!r}: {told}. Nothing was written. Do not try again with this hold: stop, or "
        "acquire the lock anew and begin from what is there now",
        name=name,
        fence=fence,
        seen=seen,
    )
