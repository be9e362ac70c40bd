"""``@client.locked("ACCOUNT:{user.id}")``: one call at a time per name.

Every mistake is reported at decoration: in the key expression, the keywords, the kind of function.
The decorator knows clients only through the methods it calls, so both APIs share it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar

from lockfast.errors import ConfigurationError
from lockfast.inputs import check_terms, checked_number
from lockfast.keys import Key, compile_key
from lockfast.model import MOST_PERMITS

OnBusy = Literal["raise", "skip"]
Kind = Literal["lock", "read", "write"]
F = TypeVar("F", bound=Callable[..., Any])
GENERATES = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
KEYWORDS = ("timeout", "lease", "renew", "max_hold", "fair", "label", "on_lost", "warn_after")


class Locking(Protocol):
    """Client as the decorator sees it."""

    def counterpart(self, api: str) -> Any: ...


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
    client: Callable[[], Locking], key: Key, *, prefix: str | None, on_busy: OnBusy, kind: Kind,
    semaphore: int | None, terms: Mapping[str, Any],
) -> Callable[[F], F]:  # fmt: skip
    """Return the decorator. It calls ``client`` at the first call, to not connect at import."""
    check_terms("locked()", terms, KEYWORDS)
    if kind not in ("lock", "read", "write"):
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
            chosen, name = client().counterpart(api), name_of(args, kwargs)
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
