"""The Lua files, made ready to send: one per verb, each with the law of slots spliced in.

A script is called by its SHA. A server that does not know it (restarted, flushed) says NOSCRIPT and
is sent the source, once.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"
_LAW = "--@law\n"
_CONSTANTS = "--@constants\n"


def bulk(data: bytes) -> bytes:
    """One argument, as the wire writes it."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def packed(*words: str | bytes | int) -> bytes:
    """A whole command."""
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(map(bulk, encoded))


def _read(part: str) -> str:
    return (_FOLDER / f"{part}.lua").read_text()


class Script:
    """One verb."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        source = _read(verb).replace(_LAW, _read("law"))
        before, *after = source.split(_CONSTANTS)
        self.write(before + _read("constants") + "".join(after) if after else source)

    def write(self, source: str) -> None:
        """From now on it is this; tests put mistakes in."""
        self.source = source
        self.sha = hashlib.sha1(source.encode()).hexdigest()
        self._sha = b"$7\r\nEVALSHA\r\n" + bulk(self.sha.encode())
        self.head = functools.cache(self._head)
        self._source = b"$4\r\nEVAL\r\n" + bulk(source.encode())

    def _head(self, words: int) -> bytes:
        """The beginning of a call with so many words after it: the number of keys, keys, said."""
        return b"*%d\r\n" % (words + 2) + self._sha

    def head_in_full(self, words: int) -> bytes:
        """The same for a server that does not know the script."""
        return b"*%d\r\n" % (words + 2) + self._source


CLAIM = Script("claim")
RENEW = Script("renew")
REFRESH = Script("refresh")
RELEASE = Script("release")
LEAVE = Script("leave")
INSPECT = Script("inspect")
TRANSFER = Script("transfer")
SHRINK = Script("shrink")
RESIZE = Script("resize")
BREAK = Script("break")
NAMES = Script("names")
SIMPLE_CLAIM = Script("simple_claim")
SIMPLE_RENEW = Script("simple_renew")
SIMPLE_RELEASE = Script("simple_release")
# What is said to each node of a quorum.
VOTE = Script("vote")
SETTLE = Script("settle")
UNDO = Script("undo")
UNVOTE = Script("unvote")
MARK_NODE = Script("mark")
ALL = (
    CLAIM, RENEW, REFRESH, RELEASE, LEAVE, INSPECT, TRANSFER, SHRINK, RESIZE,
    BREAK, NAMES, SIMPLE_CLAIM, SIMPLE_RENEW, SIMPLE_RELEASE,
    VOTE, SETTLE, UNDO, UNVOTE, MARK_NODE,
)  # fmt: skip
