"""Figures derived from two inspections, which names are inspected, and the poller. No store."""

from __future__ import annotations

import pytest

from both_apis import until
from lockfast.cli import top
from lockfast.cli.admin import Address, Admin, Inspection
from lockfast.cli.top import HISTORY, MOST_INSPECTIONS, MOST_KEPT, RECENT, Model, Poller, updated
from lockfast.errors import BackendError
from lockfast.model import ALL_SLOTS, LATCH, Holder, Snapshot, Waiter, Who

ME = Who("host", 1, "thread")


def address(name, once=False):
    return Address("default", name, once)


def inspection(
    name, *fences, now=100.0, since=90.0, waiters=(), left=20.0, slots=1, once=False, who=ME
):
    holders = tuple(Holder(who, fence, 1, since, left) for fence in fences)
    queue = tuple(Waiter(ME, 1, began, True) for began in waiters)
    return Inspection(address(name, once), Snapshot(name, slots, holders, queue, now))


def names(rows):
    return [seen.inspection.address.name for seen in rows]


def test_new_fences_are_hand_overs():
    seen = updated(None, inspection("n", 1), 0.0)
    assert seen.rate == 0
    for second in range(1, 60):
        seen = updated(seen, inspection("n", 1 + second), float(second))
    assert seen.rate == pytest.approx(1.0, abs=0.01)
    for second in range(60, 120):
        seen = updated(seen, inspection("n", 60), float(second))
    assert seen.rate < 0.01


def test_a_hold_that_continues_is_no_hand_over():
    seen = updated(None, inspection("n", 7), 0.0)
    assert updated(seen, inspection("n", 7), 1.0).rate == 0
    assert updated(seen, inspection("n"), 1.0).rate == 0


def test_holders_are_distinguished_by_their_fences():
    seen = updated(None, inspection("n", 1, 2, slots=5), 0.0)
    assert updated(seen, inspection("n", 2, 3, 4, slots=5), 1.0).rate > 0


@pytest.mark.parametrize(
    "left, after, apart, count",
    [
        (0.5, (), 1.0, 1),  # its lease was due to end in between
        (0.5, (8,), 1.0, 1),  # and there is a new holder
        (0.5, (7,), 1.0, 0),  # it was renewed
        (20.0, (), 1.0, 0),  # released or broken
        (3.0, (), 60.0, 0),  # unknown after so long
    ],
)
def test_a_hold_counts_as_lapsed_only_if_its_lease_was_due_to_end(left, after, apart, count):
    before = updated(None, inspection("n", 7, now=100.0, left=left), 0.0)
    assert updated(before, inspection("n", *after, now=100.0 + apart), apart).lapsed == count


@pytest.mark.parametrize("more", [{"once": True}, {"slots": LATCH + 3}])
def test_periods_and_latches_do_not_count_as_lapsed(more):
    before = updated(None, inspection("n", 7, left=0.5, **more), 0.0)
    assert updated(before, inspection("n", now=101.0, **more), 1.0).lapsed == 0


def test_lapsed_holds_stay_counted_when_the_name_is_free():
    model = Model()
    model.listed([address("a"), address("b")], 0.0)
    model.inspected(inspection("a", 1, left=0.5), 0.0)
    model.inspected(inspection("b", 2, left=0.5), 0.0)
    model.inspected(inspection("a", now=101.0), 1.0)  # inspected, free
    model.listed([], 1.0)  # not listed any more
    assert model.totals().lapsed == 2 and model.totals().names == 0


def test_a_filter_finds_names_holders_and_labels():
    model = Model()
    model.inspected(inspection("orders:1", 1, who=Who("web-1", 5, "t", "import")), 0.0)
    model.inspected(inspection("reports", 1, who=Who("batch", 5, "t")), 0.0)
    for text, found in (("ORD", ["orders:1"]), ("import", ["orders:1"]), ("batch", ["reports"])):
        assert names(model.matching(text)) == found
    assert len(model.matching("")) == 2 and not model.matching("nobody")


def test_a_round_inspects_some_of_100_000_names_and_all_are_inspected_in_rotation():
    model = Model()
    everything = [address(f"{number:06}") for number in range(100_000)]
    model.listed(everything, 0.0)
    on_screen = everything[50_000:50_020]
    inspected = set()
    for _ in range(560):
        wanted = model.to_inspect(on_screen)
        assert len(wanted) <= MOST_INSPECTIONS and set(on_screen) <= set(wanted)
        inspected |= set(wanted)
    assert inspected == set(everything)


def test_contended_names_are_inspected_in_every_round_and_leave_room_for_others():
    model = Model()
    model.listed([address(f"{number:04}") for number in range(3000)], 0.0)
    model.inspected(inspection("0007", 1, waiters=[1]), 0.0)
    for _ in range(5):
        assert address("0007") in model.to_inspect([])
    for number in range(1000, 2000):
        model.inspected(inspection(f"{number:04}", 1, waiters=[1]), 0.0)
    inspected = {one for _ in range(100) for one in model.to_inspect([])}
    assert address("2999") in inspected


def test_a_few_names_are_inspected_once_each():
    model = Model()
    model.listed([address("a"), address("b")], 0.0)
    assert sorted(model.to_inspect([])) == [address("a"), address("b")]
    assert Model().to_inspect([]) == []


def test_contended_and_longest_held_names_are_kept(monkeypatch):
    monkeypatch.setattr(top, "MOST_KEPT", 50)
    model = Model()
    model.inspected(inspection("waited", 1, since=99, waiters=[99]), 0.0)
    model.inspected(inspection("long", 1, since=1), 0.0)
    for number in range(500):
        model.inspected(inspection(f"{number}", 1, since=50), 0.0)
    kept = names(model.matching(""))
    assert len(kept) <= 50 + MOST_INSPECTIONS < MOST_KEPT and {"waited", "long"} <= set(kept)


def test_totals_count_the_known_names():
    model = Model()
    model.listed([address("a"), address("b"), address("c")], 0.0)
    model.inspected(inspection("a", 1, waiters=[1, 2]), 0.0)
    model.inspected(inspection("b", 1, slots=ALL_SLOTS), 0.0)
    totals = model.totals()
    assert (totals.names, totals.known, totals.contended, totals.waiting) == (3, 2, 1, 2)
    assert names(model.matching("")) == ["a", "b"]


# ---- history --------------------------------------------------------------------------------


def test_the_latest_hand_overs_of_a_name_are_kept_with_both_holders():
    seen = updated(None, inspection("n", 1), 0.0)
    seen = updated(seen, inspection("n", 2, waiters=[95]), 1.0)
    (event,) = seen.recent  # joining the queue is no hand-over
    assert (event.before.fence, event.holder.fence) == (1, 2)
    for second in range(2, 50):
        seen = updated(seen, inspection("n", 1 + second), float(second))
    assert [event.holder.fence for event in seen.recent] == [*range(51 - RECENT, 51)][-RECENT:]


def test_a_name_keeps_its_rates_and_waits_for_a_sparkline():
    seen = updated(None, inspection("n", 1, waiters=[97.5]), 0.0)
    assert (seen.rates, seen.waits) == ((), (2.5,))
    for second in range(1, 2 * HISTORY):
        seen = updated(seen, inspection("n", 1 + second), float(second))
    assert seen.rates == (1.0,) * HISTORY and seen.waits == (0.0,) * HISTORY


def test_a_round_adds_a_point_to_the_sparklines_of_all_names():
    model = Model()
    model.sample(10.0)
    assert (list(model.rates), list(model.waits)) == ([], [0.0])
    model.inspected(inspection("a", 1), 10.5)
    model.inspected(inspection("a", 2, waiters=[96.0, 98.0]), 11.0)
    model.inspected(inspection("b", 1), 11.0)
    model.sample(12.0)
    assert (list(model.rates), list(model.waits)) == ([0.5], [0.0, 4.0])


# ---- polling --------------------------------------------------------------------------------


class CountingAdmin(Admin):
    """A store with very many names that counts listings and inspections."""

    def __init__(self, count):
        self.names = [address(f"{number:06}") for number in range(count)]
        self.listings = self.inspections = 0
        self.fails = False

    def addresses(self, prefix, *, everywhere):
        self.listings += 1
        if self.fails:
            raise BackendError("unreachable")
        return self.names

    def inspect(self, address):
        self.inspections += 1
        return inspection(address.name, 1)


def poller_of(admin, interval=1.0):
    return Poller(admin, "", everywhere=False, interval=interval)


def test_a_round_sends_a_bounded_number_of_requests():
    admin = CountingAdmin(100_000)
    poller = poller_of(admin)
    poller._round(1e9)
    assert admin.listings == 1 and 0 < admin.inspections <= 200
    assert poller.model.totals().names == 100_000


def test_a_slow_listing_is_not_repeated_soon(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("lockfast.cli.top.clock.now", lambda: now[0])
    admin = CountingAdmin(10)
    addresses = admin.addresses

    def slow(*args, **kwargs):
        now[0] += 3.0
        return addresses(*args, **kwargs)

    admin.addresses = slow
    poller = poller_of(admin)
    for _ in range(40):
        poller._round(now[0])
        now[0] += 1.0
    assert admin.listings == 2  # a listing of 3 s, then a pause of 30 s


def test_a_slow_store_is_inspected_for_half_of_the_time(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("lockfast.cli.top.clock.now", lambda: now[0])
    admin = CountingAdmin(1000)
    inspect = admin.inspect

    def slow(address):
        now[0] += 0.1
        return inspect(address)

    admin.inspect = slow
    poller_of(admin)._round(now[0])
    assert admin.inspections in (5, 6)  # half a second of inspections that take 0.1 s


def test_a_problem_ends_when_the_store_answers_again():
    admin = CountingAdmin(1)
    admin.fails = True
    poller = poller_of(admin, 0.2)
    poller.start()
    until(lambda: poller.rounds >= 2)
    assert poller.problem().startswith("no data for") and "unreachable" in poller.problem()
    admin.fails = False
    until(lambda: not poller.problem())
    poller.stop()
    assert not poller._thread.is_alive()
