"""What strangers wrote, made fit for a terminal: names, labels and hosts come from whoever locks,
and must not move an operator's cursor, clear the screen, turn text around or pretend to be more
columns. Whatever is not printable is shown as an escape.
"""

from __future__ import annotations

import shlex
import unicodedata

CUT = "…"


def legible(text: str) -> str:
    """Our own sentences, which may quote a stranger."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def shown(text: str) -> str:
    """A stranger's words: two that differ never look the same, so a backslash is doubled."""
    return legible(text.replace("\\", "\\\\"))


def quoted(text: str) -> str:
    """As a word that can be pasted into a shell."""
    safe = shown(text)
    if safe == text:
        return shlex.quote(text)
    return "$'" + safe.replace("'", "\\'") + "'"


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    if letter in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[letter]
    code = ord(letter)
    if code < 0x100:
        # In UTF-8 only these are one byte, which is what a shell understands by \x.
        return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width_of(text: str) -> int:
    """Columns that it takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_columns(letter) for letter in text)


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, width: int) -> str:
    """At most so wide: its middle gives way, since both ends of a name tell it from others."""
    if width_of(text) <= width:
        return text
    if width <= 1:
        return CUT[:width]
    tail = _first(text[::-1], (width - 1) // 2)[::-1]
    return _first(text, width - 1 - width_of(tail)) + CUT + tail


def _first(text: str, width: int) -> str:
    taken = 0
    for at, letter in enumerate(text):
        taken += _columns(letter)
        if taken > width:
            return text[:at]
    return text


def padded(text: str, width: int, *, right: bool = False) -> str:
    space = " " * (width - width_of(text))
    return space + text if right else text + space
