"""Planted bugs in the Lua of Redis: one wrong line each, put into the production scripts.

A test runs every one of them and demands that some seed finds it, as with those of `bugs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from holdfast.backends.redis import scripts

Plant = Callable[[], AbstractContextManager[Any]]
Line = tuple[str, str]

_NEVER = "9007199254000000"


def planted(*lines: Line) -> Plant:
    """Put the second text of each pair in the place of the first, wherever it stands."""

    @contextmanager
    def plant() -> Iterator[None]:
        honest = {script: script.source for script in scripts.ALL}
        try:
            for right, wrong in lines:
                touched = [script for script in scripts.ALL if right in script.source]
                assert touched, f"no script says {right!r} any more"
                for script in touched:
                    script.write(script.source.replace(right, wrong))
            yield
        finally:
            for script, source in honest.items():
                script.write(source)

    return plant


LUA_BUGS: dict[str, Plant] = {
    # Whoever releases frees whatever is held.
    "lua_release_without_owner_check": planted(
        (
            "local said = call('HGET', KEYS[i], id)\n",
            "local said = call('HGETALL', KEYS[i])[4]\n  call('DEL', KEYS[i])\n",
        )
    ),
    # A renewal that writes the hold again instead of extending it.
    "lua_renewal_brings_back_what_was_released": planted(
        (
            "local said = redis.pcall('HGET', key, id)\n",
            "local said = redis.pcall('HGET', key, id)"
            f" or fence .. ' {_NEVER} 0 ' .. ARGV[3 * i] .. ' 1 1 . x'\n",
        )
    ),
    # A plain counter: it repeats after a restart without data.
    "lua_fence_without_a_floor": planted(
        ("math.max(book.last + 1, book.now)", "book.last + 1"),
        ("math.max(last + 1, now)", "last + 1"),
    ),
    # It goes back when the server's clock does.
    "lua_fence_from_the_clock_alone": planted(
        ("math.max(book.last + 1, book.now)", "book.now"),
        ("math.max(last + 1, now)", "now"),
    ),
    # Who waits is never told, neither by a bell nor by asking again.
    "lua_nobody_is_served": planted(
        (
            "local function serve(book, awake)\n",
            "local function serve(book, awake)\n  do return end\n",
        )
    ),
    # The place of a crashed waiter stands for ever.
    "lua_dead_waiters_are_never_buried": planted(("local PLACE = 6000000", "local PLACE = 6e9")),
    # n + 1 of n.
    "lua_one_more_than_there_are": planted(
        ("return slots - book.taken\n", "return slots - book.taken + 1\n")
    ),
    # A free slot goes to whoever asks, although others wait.
    "lua_newcomers_overtake": planted(("and not (mine.first == 1 and waiter(book, true, 0))", "")),
    # A crashed holder holds for ever.
    "lua_leases_never_end": planted(
        ("place.ends = book.now + lease", f"place.ends = {_NEVER}"),
        ("now + lease, now)", f"{_NEVER}, now)"),
    ),
    # A waiter that gives up just when it is served leaves a hold that nobody knows of.
    "lua_leaving_forgets_a_grant_that_crossed": planted(
        (
            "redis.call('HDEL', KEYS[1], mine.id)\n",
            f"mine.ends = {_NEVER}\n  write_hold(book, mine)\n",
        )
    ),
    # Keys that expire before what they keep does.
    "lua_keys_expire_before_leases": planted(
        ("digits(math.ceil((ends - book.now) / 1000))", "'300'"),
        ("math.max(90000, math.ceil(lease / 1000))", "300"),
    ),
    # Asked again, a claim that holds is granted anew instead of being told the same.
    "lua_claims_are_not_idempotent": planted(
        (
            "return extend(book, book.holds[mine.id], mine.lease)",
            "return grant(book, book.holds[mine.id], mine.lease, next_fence(book))",
        )
    ),
}
