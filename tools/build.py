"""Build the wheel and the sdist, and check both as a user would meet them.

``twine check`` reads the metadata and renders the README as a package page does. Then each of the
two is installed into an empty virtual environment, where the README's first example and the command
run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    subprocess.run([*map(str, command)], cwd=cwd, env=os.environ | environment, check=True)


def first_example() -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found, "the README has no example"
    return found[1]


def try_out(package: Path) -> None:
    """Install the package alone and run the first example against an embedded store of its own."""
    with tempfile.TemporaryDirectory(prefix="lf") as folder:
        here = Path(folder)
        venv.create(here / "venv", with_pip=True)
        python = here / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package)
        (here / "example.py").write_text(first_example())
        url = f"sqlite://{here}/locks.db"
        run(python, "-W", "error", "example.py", cwd=here, LOCKFAST_URL=url)
        run(python.with_name("lockfast"), "ls", cwd=here, LOCKFAST_URL=url)


def main() -> None:
    for old in DIST.glob("lockfast-*"):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", DIST)
    packages = sorted(DIST.glob("lockfast-*"))
    assert len(packages) == 2, packages
    run(sys.executable, "-m", "twine", "check", "--strict", *packages)
    for package in packages:
        try_out(package)
        print(f"ok: {package.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
