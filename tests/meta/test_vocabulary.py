"""Retired words stay out of identifiers, docstrings, comments, messages and pages.

``python tests/meta/test_vocabulary.py [path…]`` lists every hit below the paths, with its line and
the word to use instead.

Two things count as quotations of other programs and are left alone: a name that a file imports from
another project (`hypothesis.given`, `typing.cast`), and SQL's own verb in ``drop_table``.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("src", "lab", "tests", "bench", "docs", "examples")
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

# Parts of identifiers (``claim_many`` has the parts claim and many), and what to say instead.
IDENTIFIERS = {
    "abandon abandoned": "withdraw (at the store), discard (locally)",
    "alone": "uncontended",
    "arrival arrivals": "enqueue",
    "bell bells ring rings rang rung ringing ringer": "wake, wakeup",
    "believe believes believed believing belief beliefs": "validity, valid_until",
    "cast": "processes",
    "colour colours color_of": "api, sync and async",
    "company crowd crowds crowded": "contended, contenders",
    "condition conditions": "errors (a mapping of server errors)",
    "desk desks": "registry",
    "door doors": "connect",
    "doubt doubts doubted": "uncertain",
    "drop drops dropped dropping": "discard, remove, lose",
    "ear ears hear hears heard hearing deaf": "listener, listen",
    "face faces": "api",
    "finding findings": "health_check",
    "forgo forgone forsake forsaken": "withdraw, discard",
    "gate gates": "latch, barrier",
    "given": "user_connections, options, arguments",
    "home homes": "wake_address",
    "link links": "connection",
    "lot lots many several": "batch",
    "near nearby far": "spin, latency",
    "place places placed": "waiter, position, queue",
    "poke pokes poked poking": "interrupt",
    "said say says saying speech speak speaks spoken word words": "command, encode, dialect, reply",
    "seat seats": "inline_hold",
    "standing": "position",
    "tell tells told telling teller": "emit, events, listeners",
    "turn turns": "operation",
    "twin twins": "counterpart",
}
# Words and phrases of prose, as regular expressions.
PROSE = {
    r"bells?|rings?|ringing|rang|rung": "wake-up, wakes",
    r"ears?|hears?|heard|hearing|deaf": "listener, listens",
    r"pok(?:e|es|ed|ing)": "interrupt",
    r"(?:a|its|their|our|no|own|whose|your) places?|places in the queue": "waiter, position",
    r"(?:stands?|standing|stood|waits?|waiting) in line": "waits in the queue",
    r"(?:who|whoever|those who) (?:waits?|asks?|gives up)": "the waiter, the caller",
    r"(?:a|its|their|own|whose|the) homes?": "wake address",
    r"crowds?|crowded": "contended, contenders",
    r"lots?": "batch",
    r"seats?|desks?|doors?": "inline hold, registry, connect",
    r"said|saying|speech|spoken|speaks? to": "command, reply, message",
    r"told|telling": "is notified, is reported, the event",
    r"believ(?:e|es|ed|ing)|beliefs?": "validity, valid until",
    r"doubts?|doubted|doubtful": "uncertain",
    r"forsake[ns]?|forgo(?:es|ne)?|abandon(?:s|ed|ing)?|(?:see|sees|seen) off": "withdraw, discard",
    r"colours?|faces?|twins?": "sync and async, API, counterpart",
    r"findings": "health checks",
    r"what is there|(?:is|are|was|be) looked for|what (?:was|is) asked": "name the thing",
}  # fmt: skip
OPENINGS = re.compile(r"(?:What|Who|It|It's|The same)\b")

_PARTS = {part: use for parts, use in IDENTIFIERS.items() for part in parts.split()}
_PROSE = [(re.compile(rf"(?<![\w-])(?:{rx})(?![\w-])", re.I), use) for rx, use in PROSE.items()]
_SPLIT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

Hit = tuple[int, str, str]  # the line, the word, what to say instead


def parts_of(name: str) -> list[str]:
    return [part.lower() for part in _SPLIT.findall(name)]


def prose_hits(text: str, line: int) -> Iterator[Hit]:
    # A line break inside a phrase is a space; the line of a hit is that of its first letter.
    flat = re.sub(r"\n[ \t#]*", lambda broken: "\n" + " " * (len(broken[0]) - 1), text)
    for pattern, use in _PROSE:
        for hit in pattern.finditer(flat.replace("\n", " ")):
            yield line + text.count("\n", 0, hit.start()), hit[0], use


def identifier_hits(name: str, line: int) -> Iterator[Hit]:
    if name.startswith(("test_", "Test")):  # a test's name is a sentence
        yield from prose_hits(name.replace("_", " "), line)
        return
    parts = parts_of(name)
    for at, part in enumerate(parts):
        sql = part == "drop" and parts[at + 1 : at + 2] in (["table"], ["tables"], ["schema"])
        if part in _PARTS and not sql:
            yield line, name, _PARTS[part]


def quoted_names(tree: ast.Module) -> set[str]:
    """Names that the file imports from other projects."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            own = node.module.split(".")[0] in ("lockfast", "lab", "sections")
            if not own and not (ROOT / "tests" / f"{node.module}.py").exists():
                names |= {alias.asname or alias.name for alias in node.names}
    return names


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node, clean=False)):
            yield node.body[0].lineno, text


def python_hits(text: str) -> Iterator[Hit]:
    tree = ast.parse(text)
    quoted = quoted_names(tree)
    for line, docstring in docstrings(tree):
        if opening := OPENINGS.match(docstring):
            yield line, f"docstring opens with {opening[0]!r}", "a noun phrase or an imperative"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.NAME and token.string not in quoted:
            yield from identifier_hits(token.string, line)
        elif token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and len(token.string.split()) > 2
        ):
            yield from prose_hits(token.string, line)


def lua_hits(text: str) -> Iterator[Hit]:
    for number, line in enumerate(text.splitlines(), 1):
        code, dashes, comment = line.partition("--")
        for name in re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'", "", code)):
            yield from identifier_hits(name, number)
        if dashes:
            yield from prose_hits(comment, number)


def hits_in(path: Path) -> list[Hit]:
    text = path.read_text()
    if path == Path(__file__).resolve():
        return []  # it quotes them all
    if path.suffix == ".py":
        found = python_hits(text)
    elif path.suffix == ".lua":
        found = lua_hits(text)
    else:
        found = prose_hits(text, 1)
    named = [(0, path.name, _PARTS[part]) for part in parts_of(path.stem) if part in _PARTS]
    return [*named, *sorted(set(found))]


def files() -> list[Path]:
    known = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *ROOMS, *PAGES],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    paths = [ROOT / name for name in known if name.endswith((".py", ".lua", ".md"))]
    return [path for path in paths if path.exists()]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_retired_word_is_used(path):
    hits = hits_in(path)
    assert not hits, "\n".join(
        f"{path.name}:{line}: {word!r}: say {use}" for line, word, use in hits
    )


@pytest.mark.parametrize(
    "text",
    [
        '"""Who waits is rung."""\n',
        '"""What X says when it will not."""\n',
        "bell = 1\n",
        "def claim_many(): ...\n",
        "class TaskLink: ...\n",
        "# The release\n# is told of it.\n",
        'raise Error("the lock was said to be lost")\n',
        "def test_who_waits_is_served(): ...\n",
    ],
)
def test_a_retired_word_is_found(text):
    assert list(python_hits(text))


@pytest.mark.parametrize(
    "text",
    [
        "from hypothesis import given\n\n@given\ndef f(): ...\n",
        "from typing import cast\n\nx = cast(int, 1)\n",
        "def drop_tables(): ...\n",
        '"""The waiter replaces its signal."""\n',
        "def test_a_waiter_is_served_in_arrival_order(): ...\n",
    ],
)
def test_ordinary_english_and_quotations_are_left_alone(text):
    assert not list(python_hits(text))


if __name__ == "__main__":
    below = [Path(argument).resolve() for argument in sys.argv[1:]] or [ROOT]
    total = 0
    for each in files():
        if any(each == top or top in each.parents for top in below):
            for line, word, use in hits_in(each):
                total += 1
                print(f"{each.relative_to(ROOT)}:{line}: {word!r}: say {use}")
    print(f"{total} hits")
