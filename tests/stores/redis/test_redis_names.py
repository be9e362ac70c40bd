"""The mapping of names to keys: unambiguous, reversible, all keys of a name in one hash slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_redis import Agent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from lockfast import ConfigurationError
from lockfast.stores.redis.commands import THREE_KEYS, key_of, keys_of, name_of

Make = Callable[..., Agent]

NAMES = st.text(min_size=1).filter(lambda text: "\0" not in text and _is_text(text))
ODD = st.text(alphabet="{}%*?[]^-\\/:. \r\naAé", min_size=1, max_size=8)
KINDS = [
    "}", "{", "{}", "}{", "a}b", "{a}", "a:q", "a:w", "a}:q", "*", "?", "[a]", "a*", "..", "/",
    "a/../b", "\r\n", "\n", " ", "%", "%25", "%7D", "A", "a", "\u00e9", "e\u0301", "\U0001f512",
    "-", "a-b", "^", "\\", "\u2028", ".f", ".n", "x" * 1000, "default:a", "a b", "\x7f", "\x01",
]  # fmt: skip


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(NAMES | ODD, NAMES | ODD)
@example("a}", "a")
@example("%7D", "}")
def test_two_names_never_share_a_key(one: str, other: str) -> None:
    keys = {key_of(one) + kind for kind in ("", ":q", ":w")}
    others = {key_of(other) + kind for kind in ("", ":q", ":w")}
    assert (one == other) == bool(keys & others)


@settings(max_examples=300, deadline=None)
@given(NAMES | ODD)
@example("{}")
@example("}{")
def test_all_keys_of_a_name_are_in_one_slot_and_map_back_to_it(name: str) -> None:
    packed = keys_of(name)[1][len(THREE_KEYS) :]
    keys = [part for part in packed.split(b"\r\n") if part and not part.startswith(b"$")]
    assert len(keys) == 3, "a line break in a key"
    assert len({key_slot(key) for key in keys}) == 1
    assert [name_of(key) for key in keys] == [name] * 3
    tag = keys[0].decode()
    assert tag.count("{") == tag.count("}") == 1 and tag.index("{") + 1 < tag.index("}")
    assert tag.isascii() and tag.isprintable() and " " not in tag


def test_names_of_all_kinds_are_distinct_and_listed_unchanged(
    agent: Make, redis_server: Any
) -> None:
    mine = agent(redis_server.url, namespace="kinds")
    other = agent(redis_server.url, namespace="kinds")
    held = {kind: mine.do(lambda c, k=kind: c.lock(k).acquire(timeout=0)) for kind in KINDS}
    assert mine.do(lambda client: client.names()) == sorted(KINDS)
    for kind in KINDS:
        assert other.do(lambda c, k=kind: c.lock(k).try_acquire()) is None
        snapshot = other.do(lambda c, k=kind: c.inspect(k))
        assert snapshot.name == kind and snapshot.holders[0].fence == held[kind].fence
    mine.do(lambda client: held["a"].release())
    assert other.do(lambda client: client.names()) == sorted(set(KINDS) - {"a"})
    for kind, hold in held.items():
        if kind != "a":
            mine.do(lambda client, hold=hold: hold.release())


@pytest.mark.parametrize("name", ["", "\0", "a\0b", "\ud800", "x" * 1001, b"a", 1, None])
def test_invalid_names_are_refused_before_anything_is_sent(
    agent: Make, redis_server: Any, name: Any
) -> None:
    mine = agent("redis://127.0.0.1:1")
    with pytest.raises(ConfigurationError):
        mine.do(lambda client: client.lock(name).acquire(timeout=0))


def test_pattern_characters_in_a_prefix_are_literal(agent: Make, redis_server: Any) -> None:
    mine = agent(redis_server.url, namespace="globs")
    names = ["a*b", "axb", "a?b", "a[x]b", "axb]", "a\\b", "a^b", "a-b", "ab", "{a", "a}"]
    holds = [mine.do(lambda c, n=name: c.lock(n).acquire()) for name in names]
    for prefix in ["a*", "a?", "a[", "a[x]", "a\\", "a^", "a-", "a", "", "*", "?", "{", "a}", "z"]:
        listed = mine.do(lambda c, p=prefix: c.names(p))
        assert listed == sorted(name for name in names if name.startswith(prefix)), prefix
    for hold in holds:
        mine.do(lambda client, hold=hold: hold.release())


def test_namespaces_are_independent(agent: Make, redis_server: Any, name: str) -> None:
    one, two = agent(redis_server.url, namespace="one"), agent(redis_server.url, namespace="two")
    nested = agent(redis_server.url, namespace="on")
    hold = one.do(lambda client: client.lock(name).acquire())
    other = two.do(lambda client: client.lock(name).acquire(timeout=0))
    assert one.do(lambda client: client.names(name)) == [name]
    assert nested.do(lambda client: client.names()) == []
    one.do(lambda client: hold.release())
    assert two.do(lambda client: client.names(name)) == [name]
    two.do(lambda client: other.release())
