"""What is said to each node of a quorum, packed for the wire."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from lockfast.model import Claim
from lockfast.stores.redis import scripts
from lockfast.stores.redis.commands import key_of, keys_of, micros, renewal
from lockfast.stores.redis.scripts import Script, bulk

MARK = "lf:born"
_MARK = bulk(MARK.encode())


class Call(NamedTuple):
    """One script with what is said to it: the number of keys, the keys, the words."""

    script: Script
    said: bytes
    words: int

    def packed(self, known: bool) -> bytes:
        """Ready to send, to a server that knows the script, or to one that may not."""
        head = self.script.head if known else self.script.head_in_full
        return head(self.words) + self.said


@functools.lru_cache(maxsize=4096)
def _terms(
    lease: float, fair: bool, wait: bool, take: int, slots: int, wake_address: str, who: str
) -> bytes:
    """What a claim says after its id."""
    length = str(micros(lease))
    words = (
        length,
        "1" if fair else "0",
        "1" if wait else "0",
        f"{length} {take} {slots}",
        wake_address,
        who,
    )
    return b"".join(bulk(word.encode()) for word in words)


def voting(
    claims: Sequence[Claim],
    asking: int,
    proposed: int,
    wake_address: str,
    *,
    make: bool,
    stop: bool,
) -> Call:
    """Ask one node, where bells for us are heard at ``home``."""
    parts = [bulk(b"%d" % (3 * len(claims) + 1))]
    parts += [keys_of(claim[0])[2] for claim in claims]
    parts.append(_MARK)
    parts.append(
        b"$1\r\n%d\r\n$1\r\n%d\r\n" % (make, stop) + bulk(b"%d" % asking) + bulk(b"%d" % proposed)
    )
    for _, claim_id, who, lease, slots, take, fair, wait, _ in claims:
        terms = _terms(lease, fair, wait, take, slots, wake_address, who)
        parts.append(b"$%d\r\n%b\r\n%b" % (len(claim_id), claim_id.encode(), terms))
    return Call(scripts.VOTE, b"".join(parts), 2 + 3 * len(claims) + 4 + 7 * len(claims))


def settling(claims: Sequence[Claim], fences: Sequence[int]) -> Call:
    return Call(scripts.SETTLE, *renewal(claims, fences))


def undoing(claims: Sequence[Claim], asking: int, *, stay: bool) -> Call:
    parts = [bulk(b"%d" % (3 * len(claims)))]
    parts += [keys_of(claim[0])[2] for claim in claims]
    parts.append(bulk(b"%d" % asking))
    for claim in claims:
        line = b"-" if not (stay and claim.wait) else b"1" if claim.fair else b"0"
        parts.append(bulk(claim.id.encode()) + bulk(line))
    return Call(scripts.UNDO, b"".join(parts), 1 + 3 * len(claims) + 1 + 2 * len(claims))


def giving_back(claims: Sequence[Claim]) -> Call:
    parts = [bulk(b"%d" % (3 * len(claims)))]
    parts += [keys_of(claim[0])[2] for claim in claims]
    parts += [bulk(claim.id.encode()) for claim in claims]
    return Call(scripts.UNVOTE, b"".join(parts), 1 + 4 * len(claims))


def founding(step: str, nonce: str, longest: float) -> Call:
    words = (step, nonce, str(micros(longest)))
    said = b"$1\r\n1\r\n" + _MARK + b"".join(bulk(word.encode()) for word in words)
    return Call(scripts.MARK_NODE, said, 5)


def about(script: Script, name: str, *words: str | int) -> Call:
    """A verb that concerns one name, with all of its keys."""
    said = keys_of(name)[1] + b"".join(bulk(str(word).encode()) for word in words)
    return Call(script, said, 4 + len(words))


def transferring(claim: Claim, attached: bool) -> Call:
    words = (claim.id, str(micros(claim.lease)), "1" if attached else "0", claim.who)
    said = b"$1\r\n1\r\n" + bulk(key_of(claim.name).encode())
    return Call(scripts.TRANSFER, said + b"".join(bulk(w.encode()) for w in words), 6)
