"""Contenders without a library: a bare socket each, pre-encoded commands, unparsed replies.

They queue at the server in arrival order, and a release wakes only the next one, as with lockfast.
So they are the limit for that order. "Least scripts" are the fewest commands that keep such a queue
with a fence: no renewal, no check for dead waiters, no expiry of the queue. "Our scripts" are
lockfast's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from lockfast.stores.redis.commands import channel_of
from lockfast.stores.redis.scripts import CLAIM, RELEASE

from ._redis import LEASE, Bare, packed

LEAST = "bare sockets, least scripts"
OURS = "bare sockets, our scripts"
LEAST_CLAIM = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return tostring(redis.call('INCR', KEYS[3]))
end
redis.call('RPUSH', KEYS[2], ARGV[1])
return {}
"""
LEAST_RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local next = redis.call('LPOP', KEYS[2])
if next then
  redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
  redis.call('PUBLISH', 'lf:wake:' .. next, next .. ' ' .. redis.call('INCR', KEYS[3]) .. ' 0')
else
  redis.call('DEL', KEYS[1])
end
return 1
"""


class Contender:
    """One thread's socket, on which it sends requests and receives its wake-ups."""

    def __init__(self, port: int, name: str, scripts: str, index: int) -> None:
        who = f"p{os.getpid()}t{index}"
        self.bare = Bare(port)
        self.bare.ask(packed("HELLO", "3"))  # distinguishes wake-ups from replies
        self.bare.ask(packed("SUBSCRIBE", channel_of(who)))
        if scripts == LEAST:
            key, claim, release = f"least:{name}", LEAST_CLAIM, LEAST_RELEASE
            claim_arguments = release_arguments = [str(LEASE * 1000)]
        else:
            key, claim, release = f"lf:{{default:{name}}}", CLAIM.source, RELEASE.source
            micros = str(LEASE * 1_000_000)
            claim_arguments = [micros, "1", "1", f"{micros} 1 1 {who} host 12345 thread"]
            release_arguments = []
        keys = ("3", key, f"{key}:q", f"{key}:w")
        shas = [
            self.bare.ask(packed("SCRIPT", "LOAD", source)).split()[1].decode()
            for source in (claim, release)
        ]
        self.claim = packed("EVALSHA", shas[0], *keys, who, *claim_arguments)
        self.release = packed("EVALSHA", shas[1], *keys, who, *release_arguments)

    def enter(self) -> tuple[int, Callable[[], object]]:
        """Acquire the lock. Its fence is in the reply or in the wake-up."""
        receive = self.bare.socket.recv
        self.bare.socket.sendall(self.claim)
        answer = receive(4096)
        if answer[:1] == b"$":
            return int(answer.split(b"\r\n", 2)[1]), self.leave
        if b"message" not in answer:  # the wake-up may have come with the reply
            answer = receive(4096)
        return int(answer.rsplit(b" ", 2)[1]), self.leave

    def leave(self) -> None:
        self.bare.socket.sendall(self.release)
        assert self.bare.socket.recv(4096) == b":1\r\n", "a lock that does not work is no limit"
