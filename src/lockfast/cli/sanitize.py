"""Text from other programs, made safe for a terminal.

Names, labels and hosts are chosen by whoever takes a lock. They must not move the operator's
cursor, clear the screen, reverse the text direction or misreport their width, so every character
that is not printable is shown as an escape.
"""

from __future__ import annotations

import shlex
import unicodedata

ELLIPSIS = "…"


def printable(text: str) -> str:
    """Escape what is not printable in a message of ours, which may quote foreign text."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def escaped(text: str) -> str:
    """Escape foreign text. Backslashes are doubled, so two different texts never look the same."""
    return printable(text.replace("\\", "\\\\"))


def shell_quoted(text: str) -> str:
    """Quote foreign text so that it can be pasted into a shell as one word."""
    safe = escaped(text)
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
        # A shell reads \x as one byte, and in UTF-8 only code points below 0x80 are one byte.
        return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width_of(text: str) -> int:
    """Number of terminal columns that the text occupies."""
    if text.isascii():
        return len(text)
    return sum(_columns(letter) for letter in text)


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """Cut the middle of a text that is too wide: names usually differ at their ends."""
    if width_of(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    tail = _first(text[::-1], (width - 1) // 2)[::-1]
    return _first(text, width - 1 - width_of(tail)) + ELLIPSIS + tail


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
