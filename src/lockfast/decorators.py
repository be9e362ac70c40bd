"""``@client.locked("ACCOUNT:{user.id}")``: one call at a time per name.

All that can be wrong with it is found at decoration: the key expression, the keywords, the kind of
function. It knows the clients only by what it calls on them, so both faces use it.
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
    def counterpart(self, api: str) -> Any: ...


def check_function(function: Any, call: str) -> None:
    """Refuse what cannot be decorated."""
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"{call} decorates a function: @client.{call}")
    if any(is_one(called) for is_one in GENERATES for called in _called(function)):
        raise ConfigurationError(
            f"{function!r} is a generator: its body would run after the lock was released. Take "
            "the lock inside it"
        )


def is_async(function: Any) -> bool:
    """Is it to be awaited? An object with an async ``__call__`` is, too: its body would else run
    after the lock was released."""
    return any(map(inspect.iscoroutinefunction, _called(function)))


def _called(function: Any) -> tuple[Any, Any]:
    return function, type(function).__call__


def template_of(key: Key, function: Any, prefix: str | None) -> str:
    """What all names of a decorated function have in common: the expression; of a key that is a
    function, the name of what is decorated."""
    text = key if isinstance(key, str) else getattr(function, "__qualname__", "a callable")
    return f"{prefix}:{text}" if prefix else text


def locked_by(
    client: Callable[[], Locking],
    key: Key,
    *,
    prefix: str | None,
    on_busy: OnBusy,
    kind: Kind,
    semaphore: int | None,
    terms: Mapping[str, Any],
) -> Callable[[F], F]:
    """The decorator itself. ``client`` is asked at the first call, so that a default client is not
    made at import."""
    check_terms("locked()", terms, KEYWORDS)
    if kind not in ("lock", "read", "write"):
        raise ConfigurationError(f"kind={kind!r}: 'lock', 'read' or 'write'")
    if semaphore is not None:
        checked_number("semaphore", semaphore, MOST_PERMITS)
        if kind != "lock":
            raise ConfigurationError(f"semaphore={semaphore!r} and kind={kind!r}: one or the other")
    if on_busy not in ("raise", "skip"):
        raise ConfigurationError(f"on_busy={on_busy!r}: 'raise' or 'skip'")
    skip = on_busy == "skip"
    # To skip is not to wait, unless a time is given.
    timeout = terms.get("timeout") or 0

    def decorate(function: F) -> F:
        check_function(function, "locked('name')")
        name_of = compile_key(key, function, prefix=prefix)
        template = template_of(key, function, prefix)

        def lock_for(api: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            chosen, name = client().counterpart(api), name_of(args, kwargs)
            if semaphore is not None:
                return chosen._made_of(template, chosen.semaphore(name, semaphore, **terms))
            if kind == "lock":
                return chosen._made_of(template, chosen.lock(name, **terms))
            both = chosen.rwlock(name, **terms)
            return chosen._made_of(template, both.read() if kind == "read" else both.write())

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
