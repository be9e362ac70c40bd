"""Figures derived from two inspections, which names are inspected, and sort orders. No store."""

from __future__ import annotations

import pytest

from lockfast.cli import top_model
from lockfast.cli.admin import Address, Inspection
from lockfast.cli.top_model import MOST_INSPECTIONS, MOST_KEPT, Model, Order, updated
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


def test_names_are_sorted_by_longest_wait_then_longest_hold():
    model = Model()
    model.inspected(inspection("idle", 1, since=50), 0.0)
    model.inspected(inspection("older", 1, since=10), 0.0)
    model.inspected(inspection("one waits", 1, waiters=[99]), 0.0)
    model.inspected(inspection("waits long", 1, waiters=[99, 30]), 0.0)
    assert names(model.rows(Order.WAIT, "")) == ["waits long", "one waits", "older", "idle"]
    assert names(model.rows(Order.HOLD, ""))[0] == "older"
    assert names(model.rows(Order.NAME, "")) == ["idle", "older", "one waits", "waits long"]


def test_lines_do_not_swap_although_names_are_inspected_one_after_the_other():
    model = Model()
    model.inspected(inspection("a", 1, since=90.0, now=100.0), 0.0)
    model.inspected(inspection("b", 2, since=90.0, now=100.3), 0.0)
    assert names(model.rows(Order.WAIT, "")) == ["a", "b"]
    model.inspected(inspection("a", 1, since=90.0, now=101.9), 1.0)
    assert names(model.rows(Order.WAIT, "")) == ["a", "b"]


def test_names_can_be_sorted_by_hand_overs_and_by_lapsed_holds():
    model = Model()
    for second in range(5):
        model.inspected(inspection("busy", second, now=100.0 + second), float(second))
        model.inspected(inspection("quiet", 77, now=100.0 + second), float(second))
    assert names(model.rows(Order.RATE, ""))[0] == "busy"
    model.inspected(inspection("quiet", 77, left=0.1, now=105.0), 5.0)
    model.inspected(inspection("quiet", 78, now=106.0), 6.0)
    assert names(model.rows(Order.LAPSED, ""))[0] == "quiet"


def test_sort_orders_rotate():
    order, seen = Order.WAIT, []
    for _ in Order:
        seen.append(order)
        order = order.next()
    assert seen == list(Order) and order is Order.WAIT


def test_a_filter_finds_names_holders_and_labels():
    model = Model()
    model.inspected(inspection("orders:1", 1, who=Who("web-1", 5, "t", "import")), 0.0)
    model.inspected(inspection("reports", 1, who=Who("batch", 5, "t")), 0.0)
    for text, found in (("ORD", ["orders:1"]), ("import", ["orders:1"]), ("batch", ["reports"])):
        assert names(model.rows(Order.NAME, text)) == found
    assert len(model.rows(Order.NAME, "")) == 2 and not model.rows(Order.NAME, "nobody")


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
    monkeypatch.setattr(top_model, "MOST_KEPT", 50)
    model = Model()
    model.inspected(inspection("waited", 1, since=99, waiters=[99]), 0.0)
    model.inspected(inspection("long", 1, since=1), 0.0)
    for number in range(500):
        model.inspected(inspection(f"{number}", 1, since=50), 0.0)
    kept = names(model.rows(Order.NAME, ""))
    assert len(kept) <= 50 + MOST_INSPECTIONS < MOST_KEPT and {"waited", "long"} <= set(kept)


def test_totals_count_the_known_names():
    model = Model()
    model.listed([address("a"), address("b"), address("c")], 0.0)
    model.inspected(inspection("a", 1, waiters=[1, 2]), 0.0)
    model.inspected(inspection("b", 1, slots=ALL_SLOTS), 0.0)
    totals = model.totals()
    assert (totals.names, totals.known, totals.contended, totals.waiting) == (3, 2, 1, 2)
    assert model.get(address("a")) is not None and model.get(address("c")) is None
