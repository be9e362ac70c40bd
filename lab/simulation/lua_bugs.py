"""Planted bugs in the Lua of Redis: one wrong line each, in the production scripts.

A test plants each of them and requires that some seed finds it, as for the bugs in `bugs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lab.simulation.bug import Bug
from lockfast.stores.redis import scripts

Line = tuple[str, str]

_NEVER = "9007199254000000"
_ALL = 2147483647  # slots of a read-write lock; a writer takes them all


def planted(*lines: Line, kind: str = "lock") -> Bug:
    """Replace the first text of each pair by the second, in every script that contains it."""

    @contextmanager
    def plant() -> Iterator[None]:
        honest = {script: script.source for script in scripts.ALL}
        try:
            for right, wrong in lines:
                touched = [script for script in scripts.ALL if right in script.source]
                assert touched, f"no script contains {right!r} any more"
                for script in touched:
                    script.write(script.source.replace(right, wrong))
            yield
        finally:
            for script, source in honest.items():
                script.write(source)

    return Bug(plant, kind)


LUA_BUGS: dict[str, Bug] = {
    # A release ends whatever hold there is.
    "lua_release_without_owner_check": planted(
        (
            "text = call('HGET', key, id)\n",
            "text = call('HGETALL', key)[4]\n    call('DEL', key)\n",
        ),
        ("known[k] == id and", "known[k] ~= '.f' and"),
    ),
    # A renewal that writes the hold again instead of extending it.
    "lua_renewal_brings_back_a_released_hold": planted(
        (
            "local text = redis.pcall('HGET', key, id)\n",
            "local text = redis.pcall('HGET', key, id)"
            f" or fence .. ' {_NEVER} 0 ' .. ARGV[3 * i] .. ' 1 1 . x'\n",
        )
    ),
    # A plain counter, which repeats after a restart without data.
    "lua_fence_without_a_floor": planted(
        ("math.max(book.last + 1, book.now)", "book.last + 1"),
        ("math.max(last + 1, now)", "last + 1"),
        ("last and last < now", "false"),
    ),
    # A fence that goes back when the server's clock does.
    "lua_fence_from_the_clock_only": planted(
        ("math.max(book.last + 1, book.now)", "book.now"),
        ("math.max(last + 1, now)", "now"),
        ("last and last < now", "last"),
    ),
    # A waiter is never served, neither by a wake-up nor when it asks again.
    "lua_nobody_is_served": planted(
        (
            "local function serve(book, caller)\n",
            "local function serve(book, caller)\n  do return end\n",
        ),
        ("if not served and size == '1 1' and #known == 4 then", "if false then"),
    ),
    # Under contention: a waiter that was served stays in the queue.
    "lua_a_contended_waiter_is_served_twice": planted(
        ("          call('ZREM', queue, head)\n          call('HDEL', waiters, head)\n", ""),
    ),
    # Under contention: the next waiter gets the lock under the previous fence.
    "lua_a_contended_grant_keeps_the_old_fence": planted(
        ("head .. ' ' .. since", "head .. ' ' .. format('%.0f', last)"),
        ("'.f', since, head, since ..", "head, format('%.0f', last) .."),
    ),
    # A crashed waiter stays in the queue for ever.
    "lua_dead_waiters_are_never_removed": planted(
        (
            "local WAITER_LEASE, WAITER_LEASE_MS = 6000000, '6000'",
            "local WAITER_LEASE, WAITER_LEASE_MS = 6e9, '6000000'",
        )
    ),
    # n + 1 holders of n slots.
    "lua_more_holders_than_slots": planted(
        ("return slots - book.taken\n", "return slots - book.taken + 1\n")
    ),
    # A free slot goes to a new claim, although others wait.
    "lua_newcomers_overtake": planted(
        ("and not (mine.first == 1 and waiter_at(book, true, 0))", "")
    ),
    # The hold of a crashed process never ends.
    "lua_leases_never_end": planted(
        ("waiter.ends = book.now + lease", f"waiter.ends = {_NEVER}"),
        ("format(' %.0f ', now + lease)", f"' {_NEVER} '"),
        ("format(' %.0f ', now + length)", f"' {_NEVER} '"),
    ),
    # A waiter that withdraws just when it is served leaves a hold that no client knows.
    "lua_leaving_ignores_a_grant_that_crossed": planted(
        (
            "redis.call('HDEL', KEYS[1], mine.id)\n",
            f"mine.ends = {_NEVER}\n  write_hold(book, mine)\n",
        )
    ),
    # Keys expire before the holds in them do.
    "lua_keys_expire_before_leases": planted(
        ("digits(math.ceil((ends - book.now) / 1000))", "'300'"),
        ("math.max(KEPT, math.ceil(lease / 1000))", "300"),
        ("KEPT_TEXT)", "300)"),
    ),
    # A repeated claim is granted anew instead of getting the same answer.
    "lua_claims_are_not_idempotent": planted(
        (
            "return extend(book, book.holds[mine.id], mine.lease)",
            "return grant(book, book.holds[mine.id], mine.lease, next_fence(book))",
        )
    ),
    # A writer leaves one slot to readers.
    "lua_readers_are_let_in_beside_a_writer": planted(
        (
            "if mine.take <= slots - book.taken and not",
            f"if mine.take <= slots - math.min(book.taken, {_ALL - 1}) and not",
        ),
        kind="readwrite",
    ),
    # Readers do not keep a writer out.
    "lua_a_writer_is_let_in_beside_readers": planted(
        (
            "book.taken = book.taken + hold.take\n",
            f"book.taken = book.taken + (hold.slots == {_ALL} and hold.take == 1"
            " and 0 or hold.take)\n",
        ),
        kind="readwrite",
    ),
    # The script reports a downgrade, and still keeps readers out.
    "lua_a_downgrade_frees_nothing": planted(("mine.take = take\n", ""), kind="readwrite"),
    # The writer's hold ends, and the reader's is never created.
    "lua_a_downgrade_loses_the_hold": planted(
        (
            "write_hold(book, mine)\nserve(book)",
            "redis.call('HDEL', KEYS[1], mine.id)\nserve(book)",
        ),
        kind="readwrite",
    ),
    # Waiters are served by the previous size.
    "lua_a_resize_skips_the_waiters": planted(
        ("    redis.call('HSET', KEYS[3], id, text_of(waiter))\n", ""), kind="semaphore"
    ),
    # Holds keep the previous size.
    "lua_a_resize_skips_the_holds": planted(
        ("  redis.call('HSET', KEYS[1], id, text_of(hold))\n", ""), kind="semaphore"
    ),
    # After a claim that is refused the next ones are taken all the same.
    "lua_a_batch_goes_on_after_a_refusal": planted(
        ("if answer[1] ~= 1 and not independent then\n", "if answer[1] == 2 then\n"), kind="multi"
    ),
    # Only the first release of a batch is executed.
    "lua_only_the_first_of_a_batch_is_released": planted(
        (
            "call('HDEL', key, id)\n    if last",
            "if i == 1 then call('HDEL', key, id) end\n    if last",
        ),
        kind="multi",
    ),
    # Two leaders within one second have the same term.
    "lua_terms_are_whole_seconds": planted(
        ("math.max(book.last + 1, book.now)", "math.max(book.last, math.floor(book.now / 1e6))"),
        ("math.max(last + 1, now)", "math.max(last, math.floor(now / 1e6))"),
        kind="election",
    ),
    # A count-down that is repeated after a lost reply counts again.
    "lua_a_repeated_count_down_counts_twice": planted(
        (
            "  if book.holds[mine.id] then\n",
            "  if book.holds[mine.id] and mine.slots >= LATCH and mine.slots < BARRIER"
            " and mine.take > 0 then\n"
            "    local hold = book.holds[mine.id]\n"
            "    hold.take, book.taken = hold.take + 1, book.taken + 1\n"
            "    write_tail(hold, hold.wake_address)\n    write_hold(book, hold)\n"
            "    serve(book)\n  end\n"
            "  if book.holds[mine.id] then\n",
        ),
        kind="latch",
    ),
    # A latch of n opens after n - 1.
    "lua_a_latch_opens_one_too_early": planted(
        ("book.taken >= slots - LATCH and", "book.taken >= slots - LATCH - 1 and"), kind="latch"
    ),
    # A latch without any count-down is taken for an open one.
    "lua_an_untouched_latch_is_open": planted(
        (
            "book.taken >= slots - LATCH and",
            "(not next(book.holds) or book.taken >= slots - LATCH) and",
        ),
        kind="latch",
    ),
    # The fast path is taken by claims on a latch, too.
    "lua_a_latch_is_taken_for_a_lock": planted((" and wait < '2'", ""), kind="latch"),
    # A barrier does not wait for the last party.
    "lua_a_barrier_lets_go_with_one_missing": planted(
        ("for skip = 0, slots - BARRIER - 1 do", "for skip = 0, slots - BARRIER - 2 do"),
        kind="barrier",
    ),
    # A party that does not listen at the moment is skipped, although it has arrived.
    "lua_a_barrier_skips_parties_that_do_not_listen": planted(
        ("if reached or waiter.slots >= BARRIER then", "if reached then"), kind="barrier"
    ),
}
