"""The decorators ``@client.locked("ACCOUNT:{user.id}")``, one call at a time per name, and
``@client.once_every("5m")``, one run per period, of all processes that call the function.

Every mistake is reported at decoration: in the key expression, the keywords, the kind of function.
The decorators know clients only through the methods they call, so both APIs share them.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from lockfast.errors import BackendError, ConfigurationError, HoldLost, NotHeld
from lockfast.inputs import (
    Seconds,
    checked_label,
    checked_lease,
    checked_name,
    checked_number,
    checked_options,
    checked_span,
)
from lockfast.keys import Key, compile_key
from lockfast.model import MOST_PERMITS

OnBusy = Literal["raise", "skip"]
KINDS = ("lock", "read", "write")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")
GENERATES = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
OWN_OPTIONS = ("prefix", "kind", "semaphore")  # the others are passed on to the lock
LOCKED_OPTIONS = (
    *("timeout", "lease", "renew", "max_hold", "fair", "label", "on_lost", "warn_after"),
    *(*OWN_OPTIONS, "on_busy"),
)


class Decorating(Protocol):
    """Client as the decorators see it."""

    def _counterpart(self, api: str) -> Any: ...


class Skippable(Protocol):
    """Decorator of a function whose calls may be skipped, and then return None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T | None]]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, T | None]: ...


def check_function(function: Any, call: str) -> None:
    """Refuse objects that cannot be decorated: classes, generators, values."""
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(
            f"{call} decorates a function, not {function!r}: write @client.{call} above a def"
        )
    if any(is_one(called) for is_one in GENERATES for called in _called(function)):
        raise ConfigurationError(
            f"{function!r} is a generator: its body would run after the lock was released. "
            "Acquire the lock inside the generator instead"
        )


def is_async(function: Any) -> bool:
    """Return True if calls of ``function`` must be awaited, an object with an async ``__call__``
    included: otherwise its body would run after the lock was released."""
    return any(map(inspect.iscoroutinefunction, _called(function)))


def _called(function: Any) -> tuple[Any, Any]:
    return function, type(function).__call__


def template_of(key: Key, function: Any, prefix: str | None) -> str:
    """Return the label of all names: the key expression, or for a callable the function's name."""
    text = key if isinstance(key, str) else getattr(function, "__qualname__", "a callable")
    return f"{prefix}:{text}" if prefix else text


def locked_by(
    client: Callable[[], Decorating], key: Key, on_busy: str, options: Mapping[str, Any]
) -> Callable[[F], F]:
    """Return the decorator. It calls ``client`` at the first call, to not connect at import."""
    own = {name: options[name] for name in OWN_OPTIONS if name in options}
    terms = {name: value for name, value in options.items() if name not in own}
    checked_options("locked()", terms, LOCKED_OPTIONS)
    prefix, kind, semaphore = own.get("prefix"), own.get("kind", "lock"), own.get("semaphore")
    if kind not in KINDS:
        raise ConfigurationError(f"kind={kind!r} must be 'lock', 'read' or 'write'")
    if semaphore is not None:
        checked_number("semaphore", semaphore, MOST_PERMITS)
        if kind != "lock":
            raise ConfigurationError(
                f"semaphore={semaphore!r} and kind={kind!r} exclude each other: pass one of them"
            )
    if on_busy not in ("raise", "skip"):
        raise ConfigurationError(f"on_busy={on_busy!r} must be 'raise' or 'skip'")
    skip = on_busy == "skip"
    # on_busy="skip" does not wait, unless a timeout is passed.
    timeout = terms.get("timeout") or 0

    def decorate(function: F) -> F:
        check_function(function, "locked('name')")
        name_of = compile_key(key, function, prefix=prefix)
        template = template_of(key, function, prefix)

        def lock_for(api: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            chosen, name = client()._counterpart(api), name_of(args, kwargs)
            if semaphore is not None:
                return chosen._with_template(template, chosen.semaphore(name, semaphore, **terms))
            if kind == "lock":
                return chosen._with_template(template, chosen.lock(name, **terms))
            both = chosen.rwlock(name, **terms)
            return chosen._with_template(template, both.read() if kind == "read" else both.write())

        if is_async(function):

            @functools.wraps(function)
            async def one_task_at_a_time(*args: Any, **kwargs: Any) -> Any:
                lock = lock_for("asyncio", args, kwargs)
                hold = await (lock.try_acquire(timeout=timeout) if skip else lock.acquire())
                if hold is None:
                    return None
                async with hold:
                    return await function(*args, **kwargs)

            return one_task_at_a_time  # type: ignore[return-value]

        @functools.wraps(function)
        def one_at_a_time(*args: Any, **kwargs: Any) -> Any:
            lock = lock_for("blocking", args, kwargs)
            hold = lock.try_acquire(timeout=timeout) if skip else lock.acquire()
            if hold is None:
                return None
            with hold:
                return function(*args, **kwargs)

        return one_at_a_time  # type: ignore[return-value]

    return decorate


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
    client: Callable[[], Decorating],
    period: Seconds | str,
    name: str | None,
    at_least: Seconds | str,
    at_most: Seconds | str | None,
    label: str,
) -> Skippable:
    """Return the decorator. ``client`` is called at the first call of the decorated function."""
    every = checked_lease(seconds_of("period", period), what="period")
    shortest = checked_span(seconds_of("at_least", at_least), "at_least", "0 sets no minimum")
    longest = None
    if at_most is not None:
        longest = checked_lease(seconds_of("at_most", at_most), what="at_most")
    if name is not None:
        checked_name(name)
    checked_label(label)

    def decorate(function: Any) -> Any:
        check_function(function, "once_every('5m')")
        job = name or name_of(function)

        if is_async(function):

            @functools.wraps(function)
            async def one_task_per_period(*args: Any, **kwargs: Any) -> Any:
                api = client()._counterpart("asyncio")
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

            return one_task_per_period

        @functools.wraps(function)
        def one_per_period(*args: Any, **kwargs: Any) -> Any:
            api = client()._counterpart("blocking")
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

        return one_per_period

    return decorate
