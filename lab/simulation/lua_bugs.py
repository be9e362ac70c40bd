"""Planted bugs in the Lua of Redis: one wrong line each, put into the production scripts.

A test runs every one of them and demands that some seed finds it, as with those of `bugs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lab.simulation.bug import Bug
from lockfast.stores.redis import scripts

Line = tuple[str, str]

_NEVER = "9007199254000000"
_ALL = 2147483647  # of a read-write lock; a writer takes them


def planted(*lines: Line, kind: str = "lock") -> Bug:
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

    return Bug(plant, kind)


LUA_BUGS: dict[str, Bug] = {
    # Whoever releases frees whatever is held.
    "lua_release_without_owner_check": planted(
        (
            "said = call('HGET', key, id)\n",
            "said = call('HGETALL', key)[4]\n    call('DEL', key)\n",
        ),
        ("known[k] == id and", "known[k] ~= '.f' and"),
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
        ("last and last < now", "false"),
    ),
    # It goes back when the server's clock does.
    "lua_fence_from_the_clock_alone": planted(
        ("math.max(book.last + 1, book.now)", "book.now"),
        ("math.max(last + 1, now)", "now"),
        ("last and last < now", "last"),
    ),
    # Who waits is never told, neither by a bell nor by asking again.
    "lua_nobody_is_served": planted(
        (
            "local function serve(book, awake)\n",
            "local function serve(book, awake)\n  do return end\n",
        ),
        ("if not served and size == '1 1' and #known == 4 then", "if false then"),
    ),
    # In a crowd: who was served keeps its place as well.
    "lua_a_crowd_is_served_twice": planted(
        ("          call('ZREM', queue, head)\n          call('HDEL', places, head)\n", ""),
    ),
    # In a crowd: the next is granted it for longer than it may believe, under an old fence.
    "lua_a_crowd_keeps_its_fence": planted(
        ("head .. ' ' .. since", "head .. ' ' .. format('%.0f', last)"),
        ("'.f', since, head, since ..", "head, format('%.0f', last) .."),
    ),
    # The place of a crashed waiter stands for ever.
    "lua_dead_waiters_are_never_buried": planted(
        ("local PLACE, PLACED = 6000000, '6000'", "local PLACE, PLACED = 6e9, '6000000'")
    ),
    # n + 1 of n.
    "lua_one_more_than_there_are": planted(
        ("return slots - book.taken\n", "return slots - book.taken + 1\n")
    ),
    # A free slot goes to whoever asks, although others wait.
    "lua_newcomers_overtake": planted(("and not (mine.first == 1 and waiter(book, true, 0))", "")),
    # A crashed holder holds for ever.
    "lua_leases_never_end": planted(
        ("place.ends = book.now + lease", f"place.ends = {_NEVER}"),
        ("format(' %.0f ', now + lease)", f"' {_NEVER} '"),
        ("format(' %.0f ', now + length)", f"' {_NEVER} '"),
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
        ("math.max(KEPT, math.ceil(lease / 1000))", "300"),
        ("KEPT_SAID)", "300)"),
    ),
    # Asked again, a claim that holds is granted anew instead of being told the same.
    "lua_claims_are_not_idempotent": planted(
        (
            "return extend(book, book.holds[mine.id], mine.lease)",
            "return grant(book, book.holds[mine.id], mine.lease, next_fence(book))",
        )
    ),
    # A writer takes all slots but one.
    "lua_readers_are_let_in_beside_a_writer": planted(
        (
            "if mine.take <= slots - book.taken and not",
            f"if mine.take <= slots - math.min(book.taken, {_ALL - 1}) and not",
        ),
        kind="readwrite",
    ),
    # Only another writer keeps a writer out.
    "lua_a_writer_is_let_in_beside_readers": planted(
        (
            "book.taken = book.taken + hold.take\n",
            f"book.taken = book.taken + (hold.slots == {_ALL} and hold.take == 1"
            " and 0 or hold.take)\n",
        ),
        kind="readwrite",
    ),
    # The store says yes, and goes on keeping readers out.
    "lua_a_downgrade_frees_nothing": planted(("mine.take = take\n", ""), kind="readwrite"),
    # The writer's hold is ended, and the reader's never made.
    "lua_a_downgrade_drops_the_hold": planted(
        (
            "write_hold(book, mine)\nserve(book)",
            "redis.call('HDEL', KEYS[1], mine.id)\nserve(book)",
        ),
        kind="readwrite",
    ),
    # They are served by the size that it had.
    "lua_a_resize_forgets_those_who_wait": planted(
        ("    redis.call('HSET', KEYS[3], id, written(place))\n", ""), kind="semaphore"
    ),
    # Those who hold it do not learn of it.
    "lua_a_resize_forgets_those_who_hold": planted(
        ("  redis.call('HSET', KEYS[1], id, written(hold))\n", ""), kind="semaphore"
    ),
    # After one that is not free the next are taken all the same.
    "lua_many_claims_go_on_after_a_refusal": planted(
        ("if answer[1] ~= 1 and not apart then\n", "if answer[1] == 2 then\n"), kind="multi"
    ),
    # Of several releases in one request only the first is done.
    "lua_of_many_only_the_first_is_released": planted(
        (
            "call('HDEL', key, id)\n    if last",
            "if i == 1 then call('HDEL', key, id) end\n    if last",
        ),
        kind="multi",
    ),
    # Two leaders in one second have one term.
    "lua_terms_are_whole_seconds": planted(
        ("math.max(book.last + 1, book.now)", "math.max(book.last, math.floor(book.now / 1e6))"),
        ("math.max(last + 1, now)", "math.max(last, math.floor(now / 1e6))"),
        kind="election",
    ),
    # Asked again after a lost reply, a count-down counts again.
    "lua_a_repeated_count_down_counts_twice": planted(
        (
            "  if book.holds[mine.id] then\n",
            "  if book.holds[mine.id] and mine.slots >= LATCH and mine.slots < BARRIER"
            " and mine.take > 0 then\n"
            "    local hold = book.holds[mine.id]\n"
            "    hold.take, book.taken = hold.take + 1, book.taken + 1\n"
            "    move(hold, hold.home)\n    write_hold(book, hold)\n    serve(book)\n  end\n"
            "  if book.holds[mine.id] then\n",
        ),
        kind="latch",
    ),
    # Counted to zero from n - 1.
    "lua_a_latch_opens_one_too_early": planted(
        ("book.taken >= slots - LATCH and", "book.taken >= slots - LATCH - 1 and"), kind="latch"
    ),
    # Nothing there: nothing to wait for.
    "lua_a_latch_that_nobody_touched_is_open": planted(
        (
            "book.taken >= slots - LATCH and",
            "(not next(book.holds) or book.taken >= slots - LATCH) and",
        ),
        kind="latch",
    ),
    # The way without the law is taken by those who wait for a latch, too.
    "lua_a_latch_is_taken_for_a_lock": planted((" and wait < '2'", ""), kind="latch"),
    # The last party is not waited for.
    "lua_a_barrier_lets_go_with_one_missing": planted(
        ("for skip = 0, slots - BARRIER - 1 do", "for skip = 0, slots - BARRIER - 2 do"),
        kind="barrier",
    ),
    # Who does not hear its bell just now is passed over, though it has come.
    "lua_a_barrier_passes_over_the_deaf": planted(
        ("if heard or place.slots >= BARRIER then", "if heard then"), kind="barrier"
    ),
}
