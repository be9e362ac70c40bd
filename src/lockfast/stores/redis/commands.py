"""What is said to Redis: the keys of a name, and the arguments of the scripts, packed for the wire.

What hot commands are put together from is remembered per name and per terms, so that a claim costs
the joining of a few byte strings.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from lockfast.model import LATCH, Claim
from lockfast.stores.redis import scripts, simple_layout
from lockfast.stores.redis.scripts import Script, bulk

# Everything printable, but for what has a meaning in a key ({ } of hash tags) or here (%).
_SAFE = "".join(chr(code) for code in range(33, 127) if chr(code) not in "%{}")
_is_safe = re.compile(f"[{re.escape(_SAFE)}]*").fullmatch
THREE_KEYS = b"$1\r\n3\r\n"
# To format one anew each time costs a quarter of putting a command together.
_LENGTHS = [b"$%d\r\n" % length for length in range(256)]


def key_of(name: str) -> str:
    """The first of a name's keys. Injective, and one hash tag whatever the name contains."""
    return f"lf:{{{name if _is_safe(name) else quote(name, safe=_SAFE)}}}"


def name_of(key: bytes) -> str:
    """Whose key that is, of whichever of its three kinds; '' if it is none of ours."""
    tag, brace, kind = key[4:].decode(errors="replace").partition("}")
    name = unquote(tag, errors="replace")
    ours = brace and kind in ("", ":q", ":w") and key_of(name).encode() == key[: 4 + len(tag) + 1]
    return name if ours else ""


@functools.lru_cache(maxsize=4096)
def keys_of(name: str) -> tuple[bytes, bytes, bytes]:
    """A name's holds key; all three with their number; all three: ready to send."""
    key = key_of(name).encode()
    three = bulk(key) + bulk(key + b":q") + bulk(key + b":w")
    return bulk(key), THREE_KEYS + three, three


@functools.lru_cache(maxsize=4096)
def _claim_terms(
    lease: float, fair: bool, wait: bool, take: int, slots: int, wake_address: str, who: str
) -> Any:
    """What a claim says after its id."""
    length = micros(lease)
    tail = f"{length} {take} {slots} {wake_address} {who}"
    waits = (1 if wait else 0) + (0 if slots < LATCH else 2)
    words = (str(length), "1" if fair else "0", str(waits), tail)
    return b"".join(bulk(word.encode()) for word in words)


def micros(seconds: float) -> int:
    return max(round(seconds * 1e6), 1)


def claim_words(claim: Claim, wake_address: str, before: bytes = b"") -> bytes:
    """What is said of one claim beside its keys, or after what is said ``before``."""
    _, claim_id, who, lease, slots, take, fair, wait, _ = claim
    terms = _claim_terms(lease, fair, wait, take, slots, wake_address, who)
    said = claim_id.encode()
    return b"".join((before, _LENGTHS[len(said)], said, b"\r\n", terms))


def claiming(claim: Claim, wake_address: str) -> bytes:
    """The same with its keys and their number."""
    return claim_words(claim, wake_address, keys_of(claim.name)[1])


def claiming_many(claims: Sequence[Claim], wake_address: str) -> tuple[bytes, int]:
    """The same of many: first all keys."""
    words = [claim_words(claim, wake_address) for claim in claims]
    return b"".join((_three_keys_each(claims), *words)), 1 + 8 * len(claims)


def release_words(claim: Claim, before: bytes = b"") -> bytes:
    said = claim[1].encode()
    return b"".join((before, _LENGTHS[len(said)], said, b"\r\n"))


def releasing(claim: Claim) -> bytes:
    return release_words(claim, keys_of(claim.name)[1])


def releasing_many(claims: Sequence[Claim]) -> tuple[bytes, int]:
    words = map(release_words, claims)
    return b"".join((_three_keys_each(claims), *words)), 1 + 4 * len(claims)


def _three_keys_each(claims: Sequence[Claim]) -> bytes:
    keys = [keys_of(claim[0])[2] for claim in claims]
    return bulk(b"%d" % (3 * len(claims))) + b"".join(keys)


def renewal(claims: Sequence[Claim], fences: Sequence[int]) -> tuple[bytes, int]:
    # In text, and encoded once: it is ASCII, so characters are bytes.
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
        said = str(fence)
        parts.append(f"${len(claim_id)}\r\n{claim_id}\r\n${len(said)}\r\n{said}\r\n{tail}")
    return "".join(parts).encode(), 1 + 4 * len(claims)


def refreshing(claims: Sequence[Claim], wake_address: str) -> tuple[bytes, int]:
    parts = [_three_keys_each(claims)]
    for claim in claims:
        words = (claim.id, str(micros(claim.lease)), wake_address)
        parts += [bulk(word.encode()) for word in words]
    return b"".join(parts), 1 + 6 * len(claims)


class Plan(NamedTuple):
    """A renewal of many: whose, by script; what is said of them; and that as commands."""

    kinds: list[tuple[Script, list[int]]]
    calls: list[tuple[bytes, int]]
    commands: list[bytes]


def planned(
    claims: Sequence[Claim],
    fences: Sequence[int],
    wake_address_of: Callable[[str], str],
    *,
    apart: bool = False,
) -> Plan:
    """``apart``: each name has a call of its own."""
    groups: dict[tuple[Script, str], list[int]] = {}
    for number, claim in enumerate(claims):
        script = scripts.RENEW if fences[number] else scripts.REFRESH
        if claim.layout:
            script = scripts.SIMPLE_RENEW
        groups.setdefault((script, claim.name if apart else ""), []).append(number)
    kinds = [(script, numbers) for (script, _), numbers in groups.items()]
    calls = []
    for script, numbers in kinds:
        chosen = [claims[number] for number in numbers]
        if script is scripts.RENEW:
            calls.append(renewal(chosen, [fences[number] for number in numbers]))
        elif script is scripts.REFRESH:
            calls.append(refreshing(chosen, wake_address_of(chosen[0].name).replace(".", "")))
        else:
            calls.append(simple_layout.renew_said(chosen))
    commands = [
        script.head(words) + said for (script, _), (said, words) in zip(kinds, calls, strict=True)
    ]
    return Plan(kinds, calls, commands)
