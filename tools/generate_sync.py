"""Generate the sync API from the async API: ``python tools/generate_sync.py [--check]``.

Every file of ``src/lockfast/aio/`` becomes the file of that name in ``src/lockfast/sync/``, except
``native.py``, which each API has of its own. The source is edited in place, by the positions of its
syntax tree, so that comments and layout stay; ruff then sorts the imports, removes those that are
not needed any more, and formats. The edits:

    lockfast.aio                              lockfast.sync
    async def, async with, async for          def, with, for
    __aenter__, __aexit__                     __enter__, __exit__
    Awaitable[T], Coroutine[Any, Any, T]      T
    await f(x), where f is of the core        run(f(x)): the coroutine never suspends
    await x, a coroutine of the core          run(x)
    await f(x), where f is of this API        f(x): a plain method of the sync API

A function is of the core if it is imported from `lockfast.core` or reached through a ``core``.
Texts that differ otherwise, mostly sentences of docstrings, stand in `TEXTS`; each must be used.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

API = Path(__file__).resolve().parents[1] / "src" / "lockfast"
HEADER = "# Generated from lockfast/aio/{} by tools/generate_sync.py: change that file instead.\n"
RUN = "from lockfast.runtime.threads import run\n"
NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "TransactionClaim": "TransactionHold",
}
TEXTS = {
    '"""The async API, for asyncio: the names of `lockfast.sync`, awaited.\n\n``async with`` '
    "cancels its body when the hold is lost, as `asyncio.timeout` does, and raises\n`HoldLost`; "
    '``on_lost="flag"`` opts out.\n"""': (
        '"""The sync API: clients, locks and holds for threads and processes."""'
    ),
    # options
    ' | Literal["flag"]': "",
    'if it is lost; or\n      ``"flag"``, to only set ``hold.lost`` and not cancel the body of '
    "``async with``.": "if it is lost.",
    "by default the current task.": "by default the current thread.",
    # what waits, and what ends a wait
    "Waits for at most": "Blocks for at most",
    "Wait until the": "Block until the",
    "Wait until one": "Block until one",
    "Wait until all": "Block until all",
    "from any task": "from any thread",
    "A cancelled acquire leaves nothing behind.\n        Raises": (
        "KeyboardInterrupt leaves nothing behind.\n        Raises"
    ),
    " A\n        cancelled acquire leaves nothing behind.": (
        "\n        KeyboardInterrupt leaves nothing behind."
    ),
    "failed or\n        cancelled acquire": "failed or\n        interrupted acquire",
    "the exception passes through. A cancelled call leaves nothing behind.": (
        "the exception passes through."
    ),
    "a timeout or a cancellation this": "a timeout this",
    "\n        A cancelled release is still sent to the store.": "",
    " A body that was\n        cancelled because a hold was lost ends in `HoldLost`.": "",
    # elections
    "``async with election.lead() as hold:`` waits for the lead, then\n        resigns. "
    "``hold.fence`` is the term. A lost lead cancels the block, as for any lock, and\n        "
    "raises `HoldLost`.": (
        "``with election.lead() as hold:`` waits for the lead, then resigns.\n\n        "
        "``hold.fence`` is the term. A lost lead shows as for any lock: `HoldLost`, "
        "``hold.lost``,\n        ``on_lost``.\n        "
    ),
    "A lost lead cancels ``work``; then stands for election again and calls ``work`` again.": (
        "After a lost lead, stands for election again and calls ``work`` again. The loss does not\n"
        "        interrupt ``work``, which has to check ``hold.is_held``."
    ),
    # the client
    "Client of one store for asyncio. One per process is enough. A forked child holds nothing of\n"
    "    its parent's.": (
        "Client of one store for blocking code. Thread-safe; one per process is enough. A forked "
        "child\n    holds nothing of its parent's."
    ),
    "transaction: ``await`` the result, or ``async with`` it.": (
        "transaction, and return a hold with a fence."
    ),
    "transaction: asyncmy, psycopg": "transaction: PyMySQL, psycopg",
    "``async with``": "``with``",
    "the async API": "the sync API",
}
Edit = tuple[int, int, str]  # from, to (offsets into the source), the new text


class Source:
    """One file of the async API, and the edits to make."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        lines = text.splitlines(keepends=True)
        self._starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
        self._lines = lines
        self._of_core = {
            alias.asname or alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lockfast.core")
            for alias in node.names
        }

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """Convert a position of the tree, whose columns count bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def edits(self) -> Iterator[Edit]:
        for node in ast.walk(self.tree):
            match node:
                case ast.AsyncFunctionDef() | ast.AsyncWith() | ast.AsyncFor():
                    yield self.start(node), self.start(node) + len("async "), ""
                case ast.Await(value=value):
                    opened, closed = ("run(", ")") if self._is_of_core(value) else ("", "")
                    yield self.start(node), self.start(value), opened
                    yield self.end(value), self.end(value), closed
                case ast.Subscript(value=ast.Name("Awaitable" | "Coroutine"), slice=inner):
                    result = inner.elts[-1] if isinstance(inner, ast.Tuple) else inner
                    yield self.start(node), self.end(node), ast.unparse(result)

    def _is_of_core(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Name):
            return True
        function = value.func if isinstance(value, ast.Call) else value
        names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        reached = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
        return bool(names & (self._of_core | {"core"}) or reached & {"core", "_core"})


def translate(text: str, unused: set[str]) -> str:
    """Return the sync version of a file of the async API, not yet formatted."""
    for ours, theirs in TEXTS.items():
        if ours in text:
            unused.discard(ours)
            text = text.replace(ours, theirs)
    source = Source(text)
    for start, end, new in sorted(source.edits(), reverse=True):
        text = text[:start] + new + text[end:]
    for ours, theirs in NAMES.items():
        text = text.replace(ours, theirs)
    text = text.replace("lockfast.aio", "lockfast.sync")
    future = "from __future__ import annotations\n"
    return text.replace(future, f"{future}\n{RUN}", 1)


def formatted(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    for command in (
        ["check", "--quiet", "--fix", "--select", "F401,I", "--stdin-filename"],
        ["format", "--quiet", "--stdin-filename"],
    ):
        done = subprocess.run(
            [*ruff, *command, str(API / "sync" / "any.py"), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def generate() -> dict[Path, str]:
    """Return the text of every file of the sync API that is generated."""
    unused, files = set(TEXTS), {}
    for path in sorted((API / "aio").glob("*.py")):
        if path.name != "native.py":
            text = translate(path.read_text(), unused)
            files[API / "sync" / path.name] = HEADER.format(path.name) + formatted(text)
    if unused:
        raise SystemExit(f"texts that no file of the async API has: {sorted(unused)}")
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description="generate the sync API from the async API")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if different")
    options = parser.parse_args()
    different = {p: t for p, t in generate().items() if not p.exists() or p.read_text() != t}
    for path, text in different.items():
        print(f"{'differs' if options.check else 'generated'}: {path.name}")
        if not options.check:
            path.write_text(text)
    return 1 if options.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
