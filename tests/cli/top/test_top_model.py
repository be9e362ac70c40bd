"""What follows from two looks, what is looked at, and in which order it is shown. No store."""

from __future__ import annotations

import pytest

from lockfast.cli.admin import Address, Inspection
from lockfast.cli.top import model as model_module
from lockfast.cli.top.model import MOST_KEPT, MOST_LOOKS, Model, Order, followed
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


def test_hand_overs_are_the_fences_that_are_new():
    seen = followed(None, inspection("n", 1), 0.0)
    assert seen.rate == 0
    for second in range(1, 60):
        seen = followed(seen, inspection("n", 1 + second), float(second))
    assert seen.rate == pytest.approx(1.0, abs=0.01)
    for second in range(60, 120):
        seen = followed(seen, inspection("n", 60), float(second))
    assert seen.rate < 0.01


def test_one_who_keeps_it_hands_nothing_over():
    seen = followed(None, inspection("n", 7), 0.0)
    assert followed(seen, inspection("n", 7), 1.0).rate == 0
    assert followed(seen, inspection("n"), 1.0).rate == 0


def test_several_holders_are_told_apart_by_their_fences():
    seen = followed(None, inspection("n", 1, 2, slots=5), 0.0)
    assert followed(seen, inspection("n", 2, 3, 4, slots=5), 1.0).rate > 0


@pytest.mark.parametrize(
    "left, after, apart, count",
    [
        (0.5, (), 1.0, 1),  # its lease was to end in between
        (0.5, (8,), 1.0, 1),  # and somebody else has it
        (0.5, (7,), 1.0, 0),  # it was renewed
        (20.0, (), 1.0, 0),  # it was released, or broken
        (3.0, (), 60.0, 0),  # who knows, after so long
    ],
)
def test_a_hold_lapsed_only_if_it_cannot_have_been_released(left, after, apart, count):
    before = followed(None, inspection("n", 7, now=100.0, left=left), 0.0)
    assert followed(before, inspection("n", *after, now=100.0 + apart), apart).lapsed == count


@pytest.mark.parametrize("more", [{"once": True}, {"slots": LATCH + 3}])
def test_what_is_meant_to_lapse_is_no_loss(more):
    before = followed(None, inspection("n", 7, left=0.5, **more), 0.0)
    assert followed(before, inspection("n", now=101.0, **more), 1.0).lapsed == 0


def test_what_lapsed_stays_counted_when_the_name_is_free():
    model = Model()
    model.found([address("a"), address("b")], 0.0)
    model.saw(inspection("a", 1, left=0.5), 0.0)
    model.saw(inspection("b", 2, left=0.5), 0.0)
    model.saw(inspection("a", now=101.0), 1.0)  # seen free
    model.found([], 1.0)  # not there any more
    assert model.totals().lapsed == 2 and model.totals().names == 0


def test_who_waits_longest_stands_first_then_who_holds_longest():
    model = Model()
    model.saw(inspection("idle", 1, since=50), 0.0)
    model.saw(inspection("older", 1, since=10), 0.0)
    model.saw(inspection("one waits", 1, waiters=[99]), 0.0)
    model.saw(inspection("waits long", 1, waiters=[99, 30]), 0.0)
    assert names(model.rows(Order.WAIT, "")) == ["waits long", "one waits", "older", "idle"]
    assert names(model.rows(Order.HOLD, ""))[0] == "older"
    assert names(model.rows(Order.NAME, "")) == ["idle", "older", "one waits", "waits long"]


def test_lines_do_not_change_places_though_looks_are_not_simultaneous():
    model = Model()
    model.saw(inspection("a", 1, since=90.0, now=100.0), 0.0)
    model.saw(inspection("b", 2, since=90.0, now=100.3), 0.0)
    assert names(model.rows(Order.WAIT, "")) == ["a", "b"]
    model.saw(inspection("a", 1, since=90.0, now=101.9), 1.0)
    assert names(model.rows(Order.WAIT, "")) == ["a", "b"]


def test_what_changes_hands_most_and_what_lapsed_can_stand_first():
    model = Model()
    for second in range(5):
        model.saw(inspection("busy", second, now=100.0 + second), float(second))
        model.saw(inspection("quiet", 77, now=100.0 + second), float(second))
    assert names(model.rows(Order.RATE, ""))[0] == "busy"
    model.saw(inspection("quiet", 77, left=0.1, now=105.0), 5.0)
    model.saw(inspection("quiet", 78, now=106.0), 6.0)
    assert names(model.rows(Order.LAPSED, ""))[0] == "quiet"


def test_orders_follow_each_other_round():
    order, seen = Order.WAIT, []
    for _ in Order:
        seen.append(order)
        order = order.next()
    assert seen == list(Order) and order is Order.WAIT


def test_a_filter_finds_names_holders_and_labels():
    model = Model()
    model.saw(inspection("orders:1", 1, who=Who("web-1", 5, "t", "import")), 0.0)
    model.saw(inspection("reports", 1, who=Who("batch", 5, "t")), 0.0)
    for text, found in (("ORD", ["orders:1"]), ("import", ["orders:1"]), ("batch", ["reports"])):
        assert names(model.rows(Order.NAME, text)) == found
    assert len(model.rows(Order.NAME, "")) == 2 and not model.rows(Order.NAME, "nobody")


def test_of_a_hundred_thousand_names_a_round_looks_at_some_and_all_get_their_turn():
    model = Model()
    everything = [address(f"{number:06}") for number in range(100_000)]
    model.found(everything, 0.0)
    on_screen = everything[50_000:50_020]
    looked = set()
    for _ in range(560):
        wanted = model.to_look_at(on_screen)
        assert len(wanted) <= MOST_LOOKS and set(on_screen) <= set(wanted)
        looked |= set(wanted)
    assert looked == set(everything)


def test_what_is_waited_for_is_looked_at_in_every_round_and_leaves_room_for_others():
    model = Model()
    model.found([address(f"{number:04}") for number in range(3000)], 0.0)
    model.saw(inspection("0007", 1, waiters=[1]), 0.0)
    for _ in range(5):
        assert address("0007") in model.to_look_at([])
    for number in range(1000, 2000):
        model.saw(inspection(f"{number:04}", 1, waiters=[1]), 0.0)
    looked = {one for _ in range(100) for one in model.to_look_at([])}
    assert address("2999") in looked


def test_few_names_are_looked_at_once_each():
    model = Model()
    model.found([address("a"), address("b")], 0.0)
    assert sorted(model.to_look_at([])) == [address("a"), address("b")]
    assert Model().to_look_at([]) == []


def test_only_the_interesting_are_kept(monkeypatch):
    monkeypatch.setattr(model_module, "MOST_KEPT", 50)
    model = Model()
    model.saw(inspection("waited", 1, since=99, waiters=[99]), 0.0)
    model.saw(inspection("long", 1, since=1), 0.0)
    for number in range(500):
        model.saw(inspection(f"{number}", 1, since=50), 0.0)
    kept = names(model.rows(Order.NAME, ""))
    assert len(kept) <= 50 + MOST_LOOKS < MOST_KEPT and {"waited", "long"} <= set(kept)


def test_totals_count_what_is_known():
    model = Model()
    model.found([address("a"), address("b"), address("c")], 0.0)
    model.saw(inspection("a", 1, waiters=[1, 2]), 0.0)
    model.saw(inspection("b", 1, slots=ALL_SLOTS), 0.0)
    totals = model.totals()
    assert (totals.names, totals.known, totals.contended, totals.waiting) == (3, 2, 1, 2)
    assert model.get(address("a")) is not None and model.get(address("c")) is None
