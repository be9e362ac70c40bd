"""``@client.once_every("5m")``: of all processes that call the function, one runs it per period.

For jobs that cron, a loop or a scheduler starts on many hosts. Every mistake is reported at
decoration. The decorator knows clients only through the methods it calls, so both APIs share it.
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
    """Client as the decorator sees it."""

    def counterpart(self, api: str) -> Any: ...


def seconds_of(what: str, text: object) -> Any:
    """Convert "1h30m" to seconds; return any other type unchanged, for the numeric checks."""
    if not isinstance(text, str):
        return text
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigurationError(
            f'{what}={text!r} must be a number of seconds or text such as "90s", "5m", "1h30m"'
        )
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def name_of(function: Any) -> str:
    """Return the qualified name of the function, with its module."""
    try:
        return f"{function.__module__}.{function.__qualname__}"
    except AttributeError:
        raise ConfigurationError(
            f"{function!r} has no __qualname__ to use as a name: pass name="
        ) from None


def once_every_by(
    client: Callable[[], Scheduling],
    period: Seconds | str,
    name: str | None,
    at_least: Seconds | str,
    at_most: Seconds | str | None,
    label: str,
) -> Callable[[F], F]:
    """Return the decorator. ``client`` is called at the first call of the decorated function."""
    every = checked_lease(seconds_of("period", period), what="period")
    shortest = checked_span(seconds_of("at_least", at_least), "at_least", "0 sets no minimum")
    longest = None
    if at_most is not None:
        longest = checked_lease(seconds_of("at_most", at_most), what="at_most")
    if name is not None:
        checked_name(name)
    checked_label(label)

    def decorate(function: F) -> F:
        check_function(function, "once_every('5m')")
        job = name or name_of(function)

        if is_async(function):

            @functools.wraps(function)
            async def one_task_per_period(*args: Any, **kwargs: Any) -> Any:
                api = client().counterpart("asyncio")
                begun = await api._begin_run(api._run_terms(job, longest, label), every, shortest)
                if begun is None:
                    return None
                async with begun[0]:
                    try:
                        result = await function(*args, **kwargs)
                    except BaseException as error:
                        # A failed run counts as the run of this period: otherwise every other
                        # process would try the same job now.
                        try:
                            await api._finish_run(begun[1])
                        except (HoldLost, BackendError, NotHeld) as ours:
                            error.add_note(f"and while ending this run of {job!r}: {ours}")
                        raise
                    await api._finish_run(begun[1])
                    return result

            return one_task_per_period  # type: ignore[return-value]

        @functools.wraps(function)
        def one_per_period(*args: Any, **kwargs: Any) -> Any:
            api = client().counterpart("blocking")
            begun = api._begin_run(api._run_terms(job, longest, label), every, shortest)
            if begun is None:
                return None
            with begun[0]:
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:
                    try:
                        api._finish_run(begun[1])
                    except (HoldLost, BackendError, NotHeld) as ours:
                        error.add_note(f"and while ending this run of {job!r}: {ours}")
                    raise
                api._finish_run(begun[1])
                return result

        return one_per_period  # type: ignore[return-value]

    return decorate
