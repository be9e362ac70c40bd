"""The encoding of names and claims, and the meaning of the order of nodes. No server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockfast.model import ALL_SLOTS, Claim
from lockfast.stores.zookeeper import nodes
from lockfast.stores.zookeeper.nodes import Node, holding, position_of

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1)
TRICKY = st.text("aA%2F/.: -_é\u0301{}*\n\r\t~\x7f\x85\ufff0", min_size=1)
NAMES = (TEXT | TRICKY).map(lambda name: f"default:{name}")


@given(NAMES, NAMES)
def test_two_names_never_share_a_path(one, other):
    assert (nodes.escaped(one) == nodes.escaped(other)) == (one == other)


@given(NAMES)
def test_an_escaped_name_is_one_part_of_a_valid_path_and_is_read_back(name):
    part = nodes.escaped(name)
    assert nodes.unescaped(part) == name
    assert part.isascii() and part.isprintable() and "/" not in part and part not in (".", "..")


@pytest.mark.parametrize("part", ["a%2", "a%2f", "é", "a b", "%41"])
def test_a_part_that_escaping_never_returns_is_no_name(part):
    assert nodes.unescaped(part) == ""


@given(st.sampled_from("std"), st.integers(0, 2**31), st.integers(1, 2**33 + 9), st.integers(0))
def test_a_node_name_contains_what_the_law_needs_and_not_the_claims_id(
    lifetime, take, slots, number
):
    number %= 2**31
    claim = Claim("default:a", "secret-7", "who", 30.0, slots, take)
    name = f"{nodes.prefix_of(claim, lifetime)}{number:010d}"
    node = nodes.parsed(name)
    assert (node.lifetime, node.take, node.slots, node.number) == (lifetime, take, slots, number)
    assert node.digest == nodes.digest_of("secret-7") and "secret" not in name
    assert nodes.parsed(node.renamed(lifetime="d", take=0))[2:6] == ("d", 0, slots, node.digest)


@given(
    st.sampled_from("nwhp"),
    st.floats(0.01, 1e7),
    st.integers(0, 2**62),
    st.booleans(),
    TEXT,
)
def test_data_is_read_as_it_was_written_and_a_lease_is_never_shorter(
    state, lease, fence, fair, who
):
    facts = nodes.Facts(state, lease, fence, 12.5, fair, who)
    again = nodes.read(facts.encoded())
    assert again._replace(lease=lease) == facts
    assert lease <= again.lease <= lease + 0.0011


@pytest.mark.parametrize("data", [b"", b"\xff", b"h 1 2", b"h x 0 0 f who"])
def test_data_that_lockfast_did_not_write_is_foreign(data):
    with pytest.raises(nodes.Foreign):
        nodes.read(data)
    with pytest.raises(nodes.Foreign):
        nodes.parsed(data.decode(errors="replace"))


def queue(*takes, slots):
    return [Node(at, f"n{at}", "s", take, slots, "") for at, take in enumerate(takes)]


TAKES = st.lists(st.integers(1, 4), max_size=8)


@given(TAKES, st.integers(1, 6), st.data())
def test_a_holder_stays_a_holder_when_other_nodes_end_or_arrive(takes, size, data):
    """A stale list errs on the safe side: a holder in it is a holder in every later one."""
    before = queue(*takes, slots=size)
    holders = before[: holding(before, size)]
    assert sum(node.take for node in holders) <= size
    gone = data.draw(st.sets(st.sampled_from(before))) if before else set()
    later = [node for node in before if node not in gone]
    later += [node._replace(number=100 + at) for at, node in enumerate(queue(1, 2, slots=size))]
    still = later[: holding(later, size)]
    assert [node for node in holders if node not in gone] == [n for n in still if n in holders]


@given(TAKES, st.integers(1, 6))
def test_no_node_that_fits_is_skipped(takes, size):
    nodes_ = queue(*takes, slots=size)
    count = holding(nodes_, size)
    assert count == len(takes) or sum(takes[: count + 1]) > size


@pytest.mark.parametrize(
    "takes, slots, watched",
    [
        ([1, 1, 1], 1, [None, 0, 1]),
        # A writer watches the node before it, a reader the last writer.
        ([1, 1, ALL_SLOTS, 1, 1], ALL_SLOTS, [None, None, 1, 2, 2]),
        ([ALL_SLOTS, 1, ALL_SLOTS, 1], ALL_SLOTS, [None, 0, 1, 2]),
        # The first waiter of a semaphore watches all holders; the others the node before them.
        ([1, 2, 2, 1], 3, [None, None, "all", 2]),
    ],
)
def test_each_waiter_watches_one_thing(takes, slots, watched):
    line = queue(*takes, slots=slots)
    for at, expected in enumerate(watched):
        position = position_of(line, at, slots)
        assert position.holds == (expected is None)
        if isinstance(expected, int):
            assert position.ahead == line[expected]
        elif expected == "all":
            assert position.ahead is None and not position.holds


def test_only_a_holder_can_end_by_its_lease():
    """The lease of a waiter has not begun, whatever its node contains."""
    line = [node._replace(lifetime="t") for node in queue(1, 1, 1, slots=1)]
    assert position_of(line, 1, 1).expiring == (line[0],)
    assert position_of(line, 2, 1).expiring == ()
