"""Types of the public API as mypy reports them for ``typed_examples.py``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path(__file__).with_name("typed_examples.py")


def expected() -> dict[int, str]:
    """Return what each line's comment expects."""
    lines = enumerate(EXAMPLES.read_text().splitlines(), 1)
    return {at: found[1] for at, line in lines if (found := re.search(r"  # ([ER]: .*)$", line))}


def reported() -> dict[int, str]:
    """Return the first error or revealed type of each line, written as the comments are."""
    mypy = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", "--no-pretty", EXAMPLES],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    found: dict[int, str] = {}
    for line in mypy.stdout.splitlines():
        report = re.match(r"\S+?:(\d+): (\w+): (.*)", line)
        if report is None:
            continue  # the number of errors
        at, kind, text = report.groups()
        code = re.search(r"\[([\w-]+)\]$", text)
        if kind == "error" and code is not None:
            found.setdefault(int(at), f"E: {code[1]}")
        elif revealed := re.match(r'Revealed type is "(.*)"$', text):
            found.setdefault(int(at), "R: " + re.sub(r"\b(?:\w+\.)+(?=\w)", "", revealed[1]))
    return found


def test_mypy_reports_the_expected_errors_and_types() -> None:
    assert reported() == expected()
