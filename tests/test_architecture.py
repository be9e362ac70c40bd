"""The walls: who may import whom, what the two faces share, what a newcomer may rely on.

errors, model ← core ← {runtime | backends} ← face ← {sync | aio} ← cli
"""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import aio, sync

SOURCE = Path(holdfast.__file__).parent
ROOT = SOURCE.parent.parent

# Room → the rooms of holdfast that it may import. A module's room is its longest prefix here.
MAY_IMPORT = {
    "holdfast": {"aio", "sync", "errors", "model"},
    "holdfast.__main__": {"cli"},
    "holdfast.errors": set(),
    "holdfast.clock": set(),
    "holdfast.forks": set(),
    "holdfast.events": set(),
    "holdfast.model": {"errors"},
    "holdfast.inputs": {"errors"},
    "holdfast.keys": {"errors"},
    "holdfast.guards": {"errors", "guards", "inputs"},
    "holdfast.metrics": {"errors", "events", "metrics"},
    "holdfast.decorators": {"errors", "inputs", "keys", "model"},
    "holdfast.schedule": {"decorators", "errors", "inputs"},
    "holdfast.core": {"core", "errors", "events", "model"},
    "holdfast.runtime": {"clock", "core", "model", "runtime"},
    "holdfast.backends": {"backends", "clock", "core", "errors", "forks", "model"},
    "holdfast.face": {
        "backends", "clock", "core", "errors", "face", "forks", "inputs", "model", "runtime",
    },
    "holdfast.default": {"face", "forks"},
    "holdfast.sync": {
        "sync", "backends", "core", "decorators", "default", "errors", "face", "forks", "inputs",
        "keys", "model", "runtime", "schedule",
    },
    "holdfast.aio": {
        "aio", "backends", "core", "decorators", "default", "errors", "face", "forks", "inputs",
        "keys", "model", "runtime", "schedule",
    },
    "holdfast.cli": {
        "aio", "backends", "cli", "clock", "core", "errors", "holdfast", "inputs", "model",
        "runtime", "sync",
    },
}  # fmt: skip

# What must not be imported where decisions are made: the world comes in through ports.
WORLDLY = {
    "asyncio", "asyncmy", "psycopg", "pymysql", "random", "socket", "sqlite3", "threading", "time",
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """All that a module imports at run time, also inside functions; not what only types need."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide the walls"
            if node.module == "holdfast":
                found |= {f"holdfast.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


def room_of(module: str) -> str:
    candidates = [room for room in MAY_IMPORT if module == room or module.startswith(room + ".")]
    exact = [room for room in candidates if room != "holdfast" or module == "holdfast"]
    return max(exact, key=len)


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_a_room_imports_only_what_its_walls_allow(path):
    module = dotted(path)
    if module.startswith("holdfast.testing"):
        return  # it may look into everything; nobody looks into it (see below)
    allowed = MAY_IMPORT[room_of(module)]
    for name in imports(path):
        assert not name.startswith("holdfast.testing"), f"{module} imports {name}"
        if name.split(".")[0] == "holdfast":
            inner = name.split(".")[1] if "." in name else "holdfast"
            assert inner in allowed, f"{module} may not import {name}"


@pytest.mark.parametrize(
    "path",
    [*(SOURCE / "core").glob("*.py"), *(SOURCE / "backends").rglob("backend.py")],
    ids=dotted,
)
def test_what_decides_does_not_know_the_world(path):
    assert not imports(path) & WORLDLY


def test_stores_do_not_know_each_other():
    for path in (SOURCE / "backends").glob("*/*.py"):
        own = f"holdfast.backends.{path.parent.name}"
        for name in imports(path):
            if name.startswith("holdfast.backends"):
                # The SQL stores share a room of their own.
                sql = path.parent.name in ("mysql", "postgres")
                words = ("bells", "findings", "poke")
                shared = name.removeprefix("holdfast.backends.") in words
                shared = shared or (sql and name.startswith("holdfast.backends.rows"))
                assert shared or name.startswith(own), f"{dotted(path)} imports {name}"


def public(face: type) -> dict[str, object]:
    return {
        name: value
        for name, value in inspect.getmembers(face)
        if not name.startswith("_") and name != "colour"
    }


@pytest.mark.parametrize("name", [name for name in sync.__all__ if name[0].isupper()])
def test_the_two_faces_have_the_same_methods_and_defaults(name):
    blocking, tasks = public(getattr(sync, name)), public(getattr(aio, name))
    assert blocking.keys() == tasks.keys()
    for method in blocking:
        if inspect.isfunction(blocking[method]):
            ours = inspect.signature(blocking[method]).parameters
            theirs = inspect.signature(tasks[method]).parameters
            told = (name, method) == ("Election", "run")  # a function there, a coroutine here
            assert told or list(ours.values()) == list(theirs.values()), f"{name}.{method}"
            assert blocking[method].__doc__, f"{name}.{method} has no docstring"


def test_the_two_faces_have_the_same_functions():
    for name in ("connect", "default_client", "lock", "locked"):
        ours = inspect.signature(getattr(sync, name)).parameters
        theirs = inspect.signature(getattr(aio, name)).parameters
        assert list(ours.values()) == list(theirs.values())


def test_import_holdfast_imports_no_driver_and_no_test_kit():
    script = "import sys, holdfast; print(*sys.modules)"
    # Measuring coverage there would import more than holdfast does.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()
    drivers = {"sqlite3", "redis", "kazoo", "pymysql", "asyncmy", "psycopg", "pytest"}
    assert not (drivers | {"opentelemetry", "prometheus_client"}) & set(loaded)
    alone = ("holdfast.testing", "holdfast.guards", "holdfast.metrics")
    assert not [name for name in loaded if name.startswith(alone)]


def test_import_holdfast_guards_imports_no_driver():
    script = "import sys, holdfast.guards; print(*sys.modules)"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()
    assert not {"sqlite3", "redis", "pymysql", "psycopg"} & set(loaded)


def test_the_public_api_is_imports_and_all_and_no_code():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    kinds = {type(node) for node in tree.body[1:]}
    assert kinds <= {ast.ImportFrom, ast.Assign}
    assert sorted(holdfast.__all__) == holdfast.__all__ or set(holdfast.__all__) <= set(
        dir(holdfast)
    )


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_a_file_is_one_idea_and_says_which(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "the file does not open with what it is for"


def test_the_repository_speaks_of_holdfast_alone():
    homes = [f"/{word}/" for word in ("root", "work", "farm")]
    rooms = [ROOT / name for name in ("src", "tests", "bench", "docs", "examples")]
    files = [*ROOT.glob("*.*"), *(path for room in rooms for path in room.rglob("*.*"))]
    for path in files:
        if path.suffix in (".py", ".md", ".toml", ".txt") and path.is_file():
            text = path.read_text(errors="replace")
            for home in homes:
                assert home not in text, f"{path} names {home}, a path of some machine"
