"""Commands to Redis, its replies, and its wake-ups: encoded for the wire, and parsed without trust.

A script's *payload* is all that follows its `head`: the number of keys, the keys, the arguments.
Parts of hot commands are cached per name and per terms, so that a claim joins a few byte strings.

Something other than Redis may have answered: a malformed reply raises one of `MALFORMED`, and the
caller then closes the connection.

The *plain layout* is one string under the name itself, set with NX and PX, compared and deleted.
Other libraries write it, so that a service that uses lockfast and one that uses such a library
exclude each other. It has no queue, no fence and no wake-ups: waiters poll.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from lockfast.model import LATCH, Busy, Claim, Differs, Gone, Granted, Holder, Snapshot, Waiter, Who
from lockfast.stores.redis import scripts
from lockfast.stores.redis.scripts import Script, bulk, packed
from lockfast.stores.wakeups import Wakeups

# All printable characters, except those with a meaning in a key ({ } of hash tags) or here (%).
_SAFE = "".join(chr(code) for code in range(33, 127) if chr(code) not in "%{}")
_is_safe = re.compile(f"[{re.escape(_SAFE)}]*").fullmatch
THREE_KEYS = b"$1\r\n3\r\n"
# Formatting a length each time would cost a quarter of building a command.
_LENGTHS = [b"$%d\r\n" % length for length in range(256)]
MOST_FENCE = 2**53  # Lua's numbers are exact up to here
GONE = Gone()
# Exceptions that parsing a reply of another shape may raise.
MALFORMED = (TypeError, ValueError, IndexError, KeyError, AttributeError)
PLAIN_PACE = 0.05  # the polling interval of a plain lock's waiters, which no release will wake
RELEASE_SINGLY = -1  # in the reply to a batch: release this one singly, to learn of its error
_new = tuple.__new__  # a named tuple's, without the wrapper for keywords: this path is hot


class Call(NamedTuple):
    """A script call; ``key`` is the name's first key, or "" if the call is about several names.
    Without a script, the payload is a whole command."""

    script: Script | None
    payload: bytes
    length: int  # how many strings the payload consists of
    key: str = ""

    def packed(self) -> bytes:
        return (self.script.head(self.length) if self.script else b"") + self.payload

    def with_source(self) -> bytes:
        """Encode the call for a server that does not know the script."""
        return (self.script.head_with_source(self.length) if self.script else b"") + self.payload


# ---- names and keys --------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def key_of(name: str) -> str:
    """The first key of a name. Injective, and one hash tag whatever the name contains."""
    return f"lf:{{{name if _is_safe(name) else quote(name, safe=_SAFE)}}}"


def plain_key_of(name: str) -> str:
    """The name without its namespace: the key that other libraries use."""
    return name.partition(":")[2]


def name_of(key: bytes) -> str:
    """The name that a key, any of the three, belongs to; '' if the key is not lockfast's."""
    tag, brace, kind = key[4:].decode(errors="replace").partition("}")
    name = unquote(tag, errors="replace")
    ours = brace and kind in ("", ":q", ":w") and key_of(name).encode() == key[: 4 + len(tag) + 1]
    return name if ours else ""


@functools.lru_cache(maxsize=4096)
def keys_of(name: str) -> tuple[bytes, bytes, bytes]:
    """The holds key of a name; all three keys with their number; all three keys: encoded."""
    key = key_of(name).encode()
    three = bulk(key) + bulk(key + b":q") + bulk(key + b":w")
    return bulk(key), THREE_KEYS + three, three


def micros(seconds: float) -> int:
    return max(round(seconds * 1e6), 1)


# ---- claim and release -----------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _claim_terms(
    lease: float, fair: bool, wait: bool, take: int, slots: int, wake_address: str, who: str
) -> Any:
    """The arguments of a claim after its id."""
    length = micros(lease)
    tail = f"{length} {take} {slots} {wake_address} {who}"
    waits = (1 if wait else 0) + (0 if slots < LATCH else 2)
    arguments = (str(length), "1" if fair else "0", str(waits), tail)
    return b"".join(bulk(argument.encode()) for argument in arguments)


def claim_arguments(claim: Claim, wake_address: str, before: bytes = b"") -> bytes:
    """The arguments of one claim, appended to ``before``."""
    _, claim_id, who, lease, slots, take, fair, wait, _ = claim
    terms = _claim_terms(lease, fair, wait, take, slots, wake_address, who)
    encoded = claim_id.encode()
    return b"".join((before, _LENGTHS[len(encoded)], encoded, b"\r\n", terms))


def claim_call(claims: Sequence[Claim], wake_address: str) -> Call:
    claim = claims[0]
    if claim.layout:
        parts = (b"1", plain_key_of(claim.name).encode(), claim.id.encode(), _millis(claim.lease))
        payload = b"".join(map(bulk, parts))
        return Call(scripts.SIMPLE_CLAIM, payload, 4, plain_key_of(claim.name))
    if len(claims) == 1:
        payload = claim_arguments(claim, wake_address, keys_of(claim.name)[1])
        return Call(scripts.CLAIM, payload, 9, key_of(claim.name))
    arguments = [claim_arguments(claim, wake_address) for claim in claims]
    payload = b"".join((_three_keys_each(claims), *arguments))
    return Call(scripts.CLAIM, payload, 1 + 8 * len(claims))


def release_call(claims: Sequence[Claim]) -> Call:
    if claims[0].layout:
        key = plain_key_of(claims[0].name)
        payload = b"".join(map(bulk, (b"1", key.encode(), claims[0].id.encode())))
        return Call(scripts.SIMPLE_RELEASE, payload, 3, key)
    ids = [bulk(claim.id.encode()) for claim in claims]
    if len(claims) == 1:
        name = claims[0].name
        return Call(scripts.RELEASE, keys_of(name)[1] + ids[0], 5, key_of(name))
    payload = b"".join((_three_keys_each(claims), *ids))
    return Call(scripts.RELEASE, payload, 1 + 4 * len(claims))


def _three_keys_each(claims: Sequence[Claim]) -> bytes:
    keys = [keys_of(claim[0])[2] for claim in claims]
    return bulk(b"%d" % (3 * len(claims))) + b"".join(keys)


def _key_of_one(claims: Sequence[Claim]) -> str:
    return key_of(claims[0].name) if len(claims) == 1 else ""


def _millis(seconds: float) -> bytes:
    return b"%d" % max(round(seconds * 1e3), 1)


def claimed(reply: Any, lease: float) -> Granted | Busy | Differs:
    """The reply to a claim: just the fence, as text, or three numbers."""
    if type(reply) is bytes:
        if reply.isdigit() and 0 < (fence := int(reply)) < MOST_FENCE:
            return _new(Granted, (fence, lease))
    elif type(reply) is list:
        kind, first, second = reply
        if kind == 1:
            return granted(first, second, lease)
        if kind == 0:
            return busy(first, second)
        if kind == 2 and type(first) is int:
            return Differs(first)
    raise ValueError


def granted(fence: Any, length: Any, lease: float) -> Granted:
    """A grant, if it is plausible: never for longer than the claim's lease."""
    if type(fence) is int and 0 < fence < MOST_FENCE and 0 < length <= lease * 1e6 + 1:
        return _new(Granted, (fence, length / 1e6))
    raise ValueError


def busy(after: Any, fence: Any) -> Busy:
    if type(fence) is int and 0 <= fence < MOST_FENCE:
        return Busy(after / 1e6, fence)
    raise ValueError


def gone(kind: Any) -> Gone:
    if kind != 3:
        raise ValueError
    return GONE


def plain_claimed(claim: Claim, kind: int, rest: int) -> Granted | Busy | Gone:
    """The reply to a claim or a renewal of a plain lock."""
    if kind == 1:
        return Granted(0, claim.lease)
    if kind != 0:
        return gone(kind)
    return Busy(min(PLAIN_PACE, rest / 1e3) if rest > 0 else PLAIN_PACE, 0)


# ---- renewals --------------------------------------------------------------------------------


def renewal_payload(claims: Sequence[Claim], fences: Sequence[int]) -> tuple[bytes, int]:
    """The payload for the renewal of holds, and the number of its parts."""
    # Built as text and encoded once: it is ASCII, so characters are bytes.
    parts = [f"${len(str(len(claims)))}\r\n{len(claims)}\r\n"]
    for claim in claims:
        key = key_of(claim.name)
        parts.append(f"${len(key)}\r\n{key}\r\n")
    seconds = -1.0
    for claim, fence in zip(claims, fences, strict=True):
        claim_id, lease = claim.id, claim.lease
        if lease != seconds:  # mostly the same for all
            seconds, length = lease, str(micros(lease))
            tail = f"${len(length)}\r\n{length}\r\n"
        text = str(fence)
        parts.append(f"${len(claim_id)}\r\n{claim_id}\r\n${len(text)}\r\n{text}\r\n{tail}")
    return "".join(parts).encode(), 1 + 4 * len(claims)


def renewal_calls(
    claims: Sequence[Claim],
    fences: Sequence[int],
    wake_address_of: Callable[[str], str],
    *,
    per_name: bool,
) -> list[tuple[Call, list[int]]]:
    """Group claims by the script that renews them, and where calls are ``per_name`` also by name.
    Return each call with the indices of its claims."""
    groups: dict[tuple[Script, str], list[int]] = {}
    for number, claim in enumerate(claims):
        script = scripts.RENEW if fences[number] else scripts.REFRESH
        if claim.layout:
            script = scripts.SIMPLE_RENEW
        groups.setdefault((script, claim.name if per_name else ""), []).append(number)
    calls = []
    for (script, _), numbers in groups.items():
        chosen = [claims[number] for number in numbers]
        key = _key_of_one(chosen)
        if script is scripts.RENEW:
            payload, count = renewal_payload(chosen, [fences[number] for number in numbers])
        elif script is scripts.REFRESH:
            wake_address = wake_address_of(chosen[0].name).replace(".", "")
            parts = [_three_keys_each(chosen)]
            for claim in chosen:
                arguments = (claim.id, str(micros(claim.lease)), wake_address)
                parts += [bulk(argument.encode()) for argument in arguments]
            payload, count = b"".join(parts), 1 + 6 * len(chosen)
        else:
            texts = [b"%d" % len(chosen)]
            texts += [plain_key_of(claim.name).encode() for claim in chosen]
            for claim in chosen:
                texts += [claim.id.encode(), _millis(claim.lease)]
            payload, count = b"".join(map(bulk, texts)), len(texts)
            key = key and plain_key_of(chosen[0].name)
        calls.append((Call(script, payload, count, key), numbers))
    return calls


def renewed(
    script: Script | None, reply: Any, claims: Sequence[Claim], fences: Sequence[int]
) -> list[Granted | Busy | Gone]:
    """The reply to one of the `renewal_calls`."""
    if script is scripts.RENEW:
        return [_extended(*one) for one in zip(reply, claims, fences, strict=True)]
    if script is scripts.REFRESH:
        threes = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        return [_refreshed(*one, claim.lease) for one, claim in zip(threes, claims, strict=True)]
    twos = zip(reply[::2], reply[1::2], strict=True)
    return [plain_claimed(claim, *one) for one, claim in zip(twos, claims, strict=True)]


def _extended(known: Any, claim: Claim, fence: int) -> Granted | Gone:
    if type(known) is not int:
        raise ValueError
    return Granted(fence, claim.lease) if known else GONE


def _refreshed(kind: Any, first: Any, second: Any, lease: float) -> Granted | Busy | Gone:
    if kind == 1:
        return granted(first, second, lease)
    return busy(first, second) if kind == 0 else gone(kind)


# ---- other verbs -----------------------------------------------------------------------------


def name_call(script: Script, name: str, *arguments: str | int) -> Call:
    """Call a script on all keys of one name."""
    payload = keys_of(name)[1] + b"".join(bulk(str(one).encode()) for one in arguments)
    return Call(script, payload, 4 + len(arguments), key_of(name))


def transfer_call(claim: Claim, attached: bool) -> Call:
    arguments = (claim.id, str(micros(claim.lease)), "1" if attached else "0", claim.who)
    payload = b"$1\r\n1\r\n" + keys_of(claim.name)[0]
    payload += b"".join(bulk(argument.encode()) for argument in arguments)
    return Call(scripts.TRANSFER, payload, 6, key_of(claim.name))


def names_call(names: Sequence[str]) -> Call:
    payload = bulk(b"%d" % (3 * len(names))) + b"".join(keys_of(name)[2] for name in names)
    key = key_of(names[0]) if len(names) == 1 else ""
    return Call(scripts.NAMES, payload, 1 + 3 * len(names), key)


def seen(name: str, now: Any, holds: Any, queue: Any, crossed: Any = 0) -> Snapshot:
    """The rows of a name, as `inspect.lua` returns them."""
    holders, waiters, slots = [], [], 0
    for text in holds:
        fence, ends, since, _, take, size, _, who = text.decode().split(" ", 7)
        slots = int(size)
        begun, rest = int(since) / 1e6, (int(ends) - now) / 1e6
        holders.append(Holder(Who.decoded(who), int(fence), int(take), begun, rest))
    for text in queue:
        fair, _, since, _, take, size, _, who = text.decode().split(" ", 7)
        slots = slots or int(size)
        waiters.append(Waiter(Who.decoded(who), int(take), int(since) / 1e6, fair == "1"))
    holders.sort(key=lambda holder: holder.fence)
    return Snapshot(name, slots, tuple(holders), tuple(waiters), now / 1e6, crossed == 1)


def plain_inspect_call(name: str) -> Call:
    key = plain_key_of(name)
    return Call(None, packed("PTTL", key), 0, key)


def plain_seen(name: str, rest: int) -> Snapshot:
    """A snapshot from PTTL's reply, ``rest``: the key does not tell who holds the lock."""
    if rest == -2:
        return Snapshot(name, 1)
    who = Who("unknown", 0, "a plain lock does not record its holder")
    return Snapshot(name, 1, (Holder(who, 0, 1, 0.0, max(rest, 0) / 1e3),))


# ---- wake-ups: a channel per wake address; messages 'id' or 'id fence lease-in-µs' -----------


def channel_of(wake_address: str) -> str:
    return f"lf:wake:{wake_address}"


def deliver(push: Any, wakeups: Wakeups) -> None:
    """Deliver the wake-up in a push. Others may publish on our channel: a malformed message is
    ignored."""
    if len(push) != 3 or push[0] != b"message" or not isinstance(push[2], bytes):
        return
    parts = push[2].decode(errors="replace").split(" ")
    try:
        grant = Granted(int(parts[1]), int(parts[2]) / 1e6) if len(parts) == 3 else None
    except ValueError:
        return
    wakeups.deliver(parts[0], grant)
