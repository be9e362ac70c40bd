"""Commands to Redis: the keys of a name and the arguments of the scripts, encoded for the wire.

A script's *payload* is all that follows its `head`: the number of keys, the keys, the arguments.
Parts of hot commands are cached per name and per terms, so that a claim joins a few byte strings.
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

# All printable characters, except those with a meaning in a key ({ } of hash tags) or here (%).
_SAFE = "".join(chr(code) for code in range(33, 127) if chr(code) not in "%{}")
_is_safe = re.compile(f"[{re.escape(_SAFE)}]*").fullmatch
THREE_KEYS = b"$1\r\n3\r\n"
# Formatting a length each time would cost a quarter of building a command.
_LENGTHS = [b"$%d\r\n" % length for length in range(256)]


def key_of(name: str) -> str:
    """The first key of a name. Injective, and one hash tag whatever the name contains."""
    return f"lf:{{{name if _is_safe(name) else quote(name, safe=_SAFE)}}}"


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


def micros(seconds: float) -> int:
    return max(round(seconds * 1e6), 1)


def claim_arguments(claim: Claim, wake_address: str, before: bytes = b"") -> bytes:
    """The arguments of one claim, appended to ``before``."""
    _, claim_id, who, lease, slots, take, fair, wait, _ = claim
    terms = _claim_terms(lease, fair, wait, take, slots, wake_address, who)
    encoded = claim_id.encode()
    return b"".join((before, _LENGTHS[len(encoded)], encoded, b"\r\n", terms))


def claim_payload(claim: Claim, wake_address: str) -> bytes:
    return claim_arguments(claim, wake_address, keys_of(claim.name)[1])


def claim_batch_payload(claims: Sequence[Claim], wake_address: str) -> tuple[bytes, int]:
    """The payload for several claims, and the number of its parts."""
    arguments = [claim_arguments(claim, wake_address) for claim in claims]
    return b"".join((_three_keys_each(claims), *arguments)), 1 + 8 * len(claims)


def release_arguments(claim: Claim, before: bytes = b"") -> bytes:
    encoded = claim[1].encode()
    return b"".join((before, _LENGTHS[len(encoded)], encoded, b"\r\n"))


def release_payload(claim: Claim) -> bytes:
    return release_arguments(claim, keys_of(claim.name)[1])


def release_batch_payload(claims: Sequence[Claim]) -> tuple[bytes, int]:
    arguments = map(release_arguments, claims)
    return b"".join((_three_keys_each(claims), *arguments)), 1 + 4 * len(claims)


def _three_keys_each(claims: Sequence[Claim]) -> bytes:
    keys = [keys_of(claim[0])[2] for claim in claims]
    return bulk(b"%d" % (3 * len(claims))) + b"".join(keys)


def renewal_payload(claims: Sequence[Claim], fences: Sequence[int]) -> tuple[bytes, int]:
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


def refresh_payload(claims: Sequence[Claim], wake_address: str) -> tuple[bytes, int]:
    parts = [_three_keys_each(claims)]
    for claim in claims:
        arguments = (claim.id, str(micros(claim.lease)), wake_address)
        parts += [bulk(argument.encode()) for argument in arguments]
    return b"".join(parts), 1 + 6 * len(claims)


class Plan(NamedTuple):
    """A renewal of several claims, as script calls."""

    calls: list[tuple[Script, list[int]]]  # the script, and the claims' indices
    payloads: list[tuple[bytes, int]]  # of each call, with the number of its parts
    commands: list[bytes]


def planned(
    claims: Sequence[Claim],
    fences: Sequence[int],
    wake_address_of: Callable[[str], str],
    *,
    per_name: bool = False,
) -> Plan:
    """Group claims by the script that renews them; in a cluster also by name."""
    groups: dict[tuple[Script, str], list[int]] = {}
    for number, claim in enumerate(claims):
        script = scripts.RENEW if fences[number] else scripts.REFRESH
        if claim.layout:
            script = scripts.SIMPLE_RENEW
        groups.setdefault((script, claim.name if per_name else ""), []).append(number)
    calls = [(script, numbers) for (script, _), numbers in groups.items()]
    payloads = []
    for script, numbers in calls:
        chosen = [claims[number] for number in numbers]
        if script is scripts.RENEW:
            payloads.append(renewal_payload(chosen, [fences[number] for number in numbers]))
        elif script is scripts.REFRESH:
            wake_address = wake_address_of(chosen[0].name).replace(".", "")
            payloads.append(refresh_payload(chosen, wake_address))
        else:
            payloads.append(simple_layout.renewal_payload(chosen))
    commands = [
        script.head(count) + payload
        for (script, _), (payload, count) in zip(calls, payloads, strict=True)
    ]
    return Plan(calls, payloads, commands)
