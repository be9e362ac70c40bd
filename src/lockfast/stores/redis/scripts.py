"""The Lua scripts, ready to send: one per verb, each with the law of slots spliced in.

A script is called by its SHA. A server that does not know it (restarted, flushed) replies NOSCRIPT
and is sent the source, once.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

# Text that is spliced in, by its mark.
_PARTS = {"--@law\n": "law.lua", "--@constants\n": "constants.lua"}


def bulk(data: bytes) -> bytes:
    """One argument, encoded as a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def packed(*parts: str | bytes | int) -> bytes:
    """A whole command, encoded for the wire."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(encoded) + b"".join(map(bulk, encoded))


@functools.cache
def _sources() -> dict[str, str]:
    """The sources in `lua/`: a file is one script and has its name, or begins each of its scripts
    with a line ``--@script NAME``."""
    sources: dict[str, str] = {}
    for file in sorted((Path(__file__).parent / "lua").glob("*.lua")):
        whole, *sections = file.read_text().split("--@script ")
        sources[file.name] = whole
        for section in sections:
            verb, _, source = section.partition("\n")
            sources[f"{verb}.lua"] = source
    return sources


class Script:
    """The script of one verb."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        source = _sources()[f"{verb}.lua"]
        for mark, part in _PARTS.items():
            # Once: in a script that needs the constants early, the law does not repeat them.
            before, *after = source.split(mark)
            source = before + _sources()[part] * bool(after) + "".join(after)
        self.write(source)

    def write(self, source: str) -> None:
        """Replace the source; tests plant bugs this way."""
        self.source = source
        self.sha = hashlib.sha1(source.encode()).hexdigest()
        self._sha = b"$7\r\nEVALSHA\r\n" + bulk(self.sha.encode())
        self.head = functools.cache(self._head)
        self._source = b"$4\r\nEVAL\r\n" + bulk(source.encode())

    def _head(self, count: int) -> bytes:
        """The start of a call with ``count`` more parts: the number of keys, keys, arguments."""
        return b"*%d\r\n" % (count + 2) + self._sha

    def head_with_source(self, count: int) -> bytes:
        """The start of a call to a server that does not know the script."""
        return b"*%d\r\n" % (count + 2) + self._source


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
# The scripts of a quorum, run on each of its nodes (Redlock).
VOTE = Script("vote")
SETTLE = Script("settle")
UNDO = Script("undo")
NODE_RELEASE = Script("node_release")
MARK_NODE = Script("mark")
ALL = (
    CLAIM, RENEW, REFRESH, RELEASE, LEAVE, INSPECT, TRANSFER, SHRINK, RESIZE,
    BREAK, NAMES, SIMPLE_CLAIM, SIMPLE_RENEW, SIMPLE_RELEASE,
    VOTE, SETTLE, UNDO, NODE_RELEASE, MARK_NODE,
)  # fmt: skip
