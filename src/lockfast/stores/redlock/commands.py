"""Script calls to the nodes of a quorum, encoded for the wire."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from lockfast.model import Claim
from lockfast.stores.redis import scripts
from lockfast.stores.redis.commands import key_of, keys_of, micros, renewal_payload
from lockfast.stores.redis.scripts import Script, bulk

MARK = "lf:born"
_MARK = bulk(MARK.encode())


class Call(NamedTuple):
    """A script and its payload: the number of keys, the keys and the arguments, encoded."""

    script: Script
    payload: bytes
    length: int  # how many strings the payload consists of

    def packed(self, known: bool) -> bytes:
        """Encode the call: by SHA for a server that has the script, else with its source."""
        head = self.script.head if known else self.script.head_with_source
        return head(self.length) + self.payload


@functools.lru_cache(maxsize=4096)
def _terms(
    lease: float, fair: bool, wait: bool, take: int, slots: int, wake_address: str, who: str
) -> bytes:
    """Encode the arguments of a claim after its id."""
    lease_us = str(micros(lease))
    arguments = (
        lease_us,
        "1" if fair else "0",
        "1" if wait else "0",
        f"{lease_us} {take} {slots}",
        wake_address,
        who,
    )
    return b"".join(bulk(argument.encode()) for argument in arguments)


def vote_call(
    claims: Sequence[Claim],
    ballot: int,
    proposed: int,
    wake_address: str,
    *,
    create: bool,
    stop: bool,
) -> Call:
    """Ask a node that wakes us at ``wake_address`` to vote."""
    parts = [bulk(b"%d" % (3 * len(claims) + 1))]
    parts += [keys_of(claim[0])[2] for claim in claims]
    parts.append(_MARK)
    parts.append(
        b"$1\r\n%d\r\n$1\r\n%d\r\n" % (create, stop) + bulk(b"%d" % ballot) + bulk(b"%d" % proposed)
    )
    for _, claim_id, who, lease, slots, take, fair, wait, _ in claims:
        terms = _terms(lease, fair, wait, take, slots, wake_address, who)
        parts.append(b"$%d\r\n%b\r\n%b" % (len(claim_id), claim_id.encode(), terms))
    return Call(scripts.VOTE, b"".join(parts), 2 + 3 * len(claims) + 4 + 7 * len(claims))


def settle_call(claims: Sequence[Claim], fences: Sequence[int]) -> Call:
    return Call(scripts.SETTLE, *renewal_payload(claims, fences))


def undo_call(claims: Sequence[Claim], ballot: int, *, stay: bool) -> Call:
    parts = [bulk(b"%d" % (3 * len(claims)))]
    parts += [keys_of(claim[0])[2] for claim in claims]
    parts.append(bulk(b"%d" % ballot))
    for claim in claims:
        queued = b"-" if not (stay and claim.wait) else b"1" if claim.fair else b"0"
        parts.append(bulk(claim.id.encode()) + bulk(queued))
    return Call(scripts.UNDO, b"".join(parts), 1 + 3 * len(claims) + 1 + 2 * len(claims))


def release_call(claims: Sequence[Claim]) -> Call:
    parts = [bulk(b"%d" % (3 * len(claims)))]
    parts += [keys_of(claim[0])[2] for claim in claims]
    parts += [bulk(claim.id.encode()) for claim in claims]
    return Call(scripts.NODE_RELEASE, b"".join(parts), 1 + 4 * len(claims))


def mark_call(step: str, nonce: str, longest: float) -> Call:
    arguments = (step, nonce, str(micros(longest)))
    payload = b"$1\r\n1\r\n" + _MARK + b"".join(bulk(one.encode()) for one in arguments)
    return Call(scripts.MARK_NODE, payload, 5)


def name_call(script: Script, name: str, *arguments: str | int) -> Call:
    """Call a script on all keys of one name."""
    payload = keys_of(name)[1] + b"".join(bulk(str(one).encode()) for one in arguments)
    return Call(script, payload, 4 + len(arguments))


def transfer_call(claim: Claim, attached: bool) -> Call:
    arguments = (claim.id, str(micros(claim.lease)), "1" if attached else "0", claim.who)
    payload = b"$1\r\n1\r\n" + bulk(key_of(claim.name).encode())
    return Call(scripts.TRANSFER, payload + b"".join(bulk(one.encode()) for one in arguments), 6)
