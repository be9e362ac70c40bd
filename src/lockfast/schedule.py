"""``@client.once_every("5m")``: of all processes that call it, one runs per period.

For what cron, a loop or a scheduler calls on many hosts. All that can be wrong with it is found at
decoration. It knows the clients only by what it calls on them, so both faces use it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from lockfast.decorators import check_function, is_async
from lockfast.errors import BackendError, ConfigurationError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_label, checked_lease, checked_name, checked_span

F = TypeVar("F", bound=Callable[..., Any])
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Scheduling(Protocol):
    def counterpart(self, api: str) -> Any: ...


def seconds_of(what: str, text: object) -> Any:
    """ "1h30m" in seconds; what is no text is left for the checks of numbers."""
    if not isinstance(text, str):
        return text
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigurationError(f'{what}={text!r}: seconds, or text as "90s", "5m", "1h30m", "1d"')
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def name_of(function: Any) -> str:
    """Its own, unless it has none."""
    try:
        return f"{function.__module__}.{function.__qualname__}"
    except AttributeError:
        raise ConfigurationError(f"{function!r} has no name of its own: give it name=") from None


def once_every_by(
    client: Callable[[], Scheduling],
    period: Seconds | str,
    name: str | None,
    at_least: Seconds | str,
    at_most: Seconds | str | None,
    label: str,
) -> Callable[[F], F]:
    """The decorator itself. ``client`` is asked at the first call."""
    every = checked_lease(seconds_of("period", period), what="period")
    shortest = checked_span(seconds_of("at_least", at_least), "at_least", "0 is no such time")
    longest = None
    if at_most is not None:
        longest = checked_lease(seconds_of("at_most", at_most), what="at_most")
    if name is not None:
        checked_name(name)
    checked_label(label)

    def decorate(function: F) -> F:
        check_function(function, "once_every('5m')")
        what = name or name_of(function)

        if is_async(function):

            @functools.wraps(function)
            async def one_task_per_period(*args: Any, **kwargs: Any) -> Any:
                api = client().counterpart("asyncio")
                turn = await api._begin_turn(api._turns(what, longest, label), every, shortest)
                if turn is None:
                    return None
                async with turn[0]:
                    try:
                        result = await function(*args, **kwargs)
                    except BaseException as error:
                        # It ran, and failed: that is a run too, or all others would try now.
                        try:
                            await api._finish_turn(turn[1])
                        except (HoldLost, BackendError, NotHeld) as ours:
                            error.add_note(f"and while ending its turn: {ours}")
                        raise
                    await api._finish_turn(turn[1])
                    return result

            return one_task_per_period  # type: ignore[return-value]

        @functools.wraps(function)
        def one_per_period(*args: Any, **kwargs: Any) -> Any:
            api = client().counterpart("blocking")
            turn = api._begin_turn(api._turns(what, longest, label), every, shortest)
            if turn is None:
                return None
            with turn[0]:
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:
                    try:
                        api._finish_turn(turn[1])
                    except (HoldLost, BackendError, NotHeld) as ours:
                        error.add_note(f"and while ending its turn: {ours}")
                    raise
                api._finish_turn(turn[1])
                return result

        return one_per_period  # type: ignore[return-value]

    return decorate
