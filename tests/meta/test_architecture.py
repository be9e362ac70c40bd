"""The walls: allowed imports, equality of the sync and the async API, rules for every file.

errors, model ← core ← {runtime | stores} ← api ← {sync | aio} ← cli
"""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lockfast
from lockfast import aio, sync

SOURCE = Path(lockfast.__file__).parent
ROOT = SOURCE.parent.parent

# Room → the rooms of lockfast that it may import. A module belongs to the longest prefix here.
MAY_IMPORT = {
    "lockfast": {"aio", "sync", "errors", "model"},
    "lockfast.__main__": {"cli"},
    "lockfast.errors": set(),
    "lockfast.clock": set(),
    "lockfast.forks": set(),
    "lockfast.events": set(),
    "lockfast.model": {"errors"},
    "lockfast.inputs": {"errors"},
    "lockfast.keys": {"errors"},
    "lockfast.guards": {"errors", "guards", "inputs"},
    "lockfast.metrics": {"errors", "events", "metrics"},
    "lockfast.decorators": {"errors", "inputs", "keys", "model"},
    "lockfast.core": {"core", "errors", "events", "model"},
    "lockfast.runtime": {"clock", "core", "model", "runtime"},
    "lockfast.stores": {"stores", "clock", "core", "errors", "forks", "model"},
    "lockfast.api": {
        "stores", "clock", "core", "errors", "api", "forks", "inputs", "model", "runtime",
    },
    "lockfast.sync": {
        "sync", "stores", "core", "decorators", "errors", "api", "inputs", "keys", "model",
        "runtime",
    },
    "lockfast.aio": {
        "aio", "stores", "core", "decorators", "errors", "api", "inputs", "keys", "model",
        "runtime",
    },
    "lockfast.cli": {
        "aio", "stores", "cli", "clock", "core", "errors", "lockfast", "inputs", "model",
        "runtime", "sync",
    },
}  # fmt: skip

# Modules that deciding code must not import: clocks, threads and drivers come in through ports.
IMPURE = {
    "asyncio", "asyncmy", "psycopg", "pymysql", "random", "socket", "sqlite3", "threading", "time",
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """The modules that a module imports at run time, inside functions too; not those for types."""
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
            if node.module == "lockfast":
                found |= {f"lockfast.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


def room_of(module: str) -> str:
    candidates = [room for room in MAY_IMPORT if module == room or module.startswith(room + ".")]
    exact = [room for room in candidates if room != "lockfast" or module == "lockfast"]
    return max(exact, key=len)


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_a_room_imports_only_what_its_walls_allow(path):
    module = dotted(path)
    if module.startswith("lockfast.testing"):
        return  # the kit may import everything; nothing imports the kit (see below)
    allowed = MAY_IMPORT[room_of(module)]
    for name in imports(path):
        assert not name.startswith("lockfast.testing"), f"{module} imports {name}"
        if name.split(".")[0] == "lockfast":
            inner = name.split(".")[1] if "." in name else "lockfast"
            assert inner in allowed, f"{module} may not import {name}"


@pytest.mark.parametrize(
    "path",
    [*(SOURCE / "core").glob("*.py"), *(SOURCE / "stores").rglob("store.py")],
    ids=dotted,
)
def test_deciding_code_imports_no_clock_thread_loop_or_driver(path):
    assert not imports(path) & IMPURE


# A Redis Cluster and Redlock are made of single Redis servers.
MADE_OF = {"redis_cluster": "redis", "redlock": "redis"}


def test_stores_do_not_know_each_other():
    shared = {path.stem for path in (SOURCE / "stores").glob("*.py")}
    for path in (SOURCE / "stores").rglob("*/*.py"):
        store = path.relative_to(SOURCE / "stores").parts[0]
        allowed = shared | {store, MADE_OF.get(store)}
        for name in imports(path):
            if name.startswith("lockfast.stores."):
                assert name.split(".")[2] in allowed, f"{dotted(path)} imports {name}"


def public(api: type) -> dict[str, object]:
    return {name: value for name, value in inspect.getmembers(api) if not name.startswith("_")}


@pytest.mark.parametrize("name", [name for name in sync.__all__ if name[0].isupper()])
def test_both_apis_have_the_same_methods_and_defaults(name):
    blocking, tasks = public(getattr(sync, name)), public(getattr(aio, name))
    assert blocking.keys() == tasks.keys()
    for method in blocking:
        if inspect.isfunction(blocking[method]):
            ours = inspect.signature(blocking[method]).parameters
            theirs = inspect.signature(tasks[method]).parameters
            differs = (name, method) == ("Election", "run")  # takes a function, or a coroutine
            assert differs or list(ours.values()) == list(theirs.values()), f"{name}.{method}"
            assert blocking[method].__doc__, f"{name}.{method} has no docstring"


@pytest.mark.parametrize("api", [sync, aio])
def test_dir_of_a_client_shows_what_users_use(api):
    shown = {name for name in dir(api.connect("memory://")) if not name.startswith("_")}
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    text = "".join(page.read_text() for page in pages)
    assert shown == {name for name in shown if f".{name}(" in text or f"`{name}`" in text}


def test_both_apis_have_the_same_functions():
    for name in ("connect", "default_client", "lock", "locked"):
        ours = inspect.signature(getattr(sync, name)).parameters
        theirs = inspect.signature(getattr(aio, name)).parameters
        assert list(ours.values()) == list(theirs.values())


def test_import_lockfast_imports_no_driver_and_no_test_kit():
    script = "import sys, lockfast; print(*sys.modules)"
    # Coverage would import modules of its own there.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()
    drivers = {"sqlite3", "redis", "kazoo", "pymysql", "asyncmy", "psycopg", "pytest"}
    assert not (drivers | {"opentelemetry", "prometheus_client"}) & set(loaded)
    optional = ("lockfast.testing", "lockfast.guards", "lockfast.metrics")
    assert not [name for name in loaded if name.startswith(optional)]


def test_import_lockfast_guards_imports_no_driver():
    script = "import sys, lockfast.guards; print(*sys.modules)"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()
    assert not {"sqlite3", "redis", "pymysql", "psycopg"} & set(loaded)


def test_the_public_api_is_imports_and_all_and_no_code():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    kinds = {type(node) for node in tree.body[1:]}
    assert kinds <= {ast.ImportFrom, ast.Assign}
    assert sorted(lockfast.__all__) == lockfast.__all__ or set(lockfast.__all__) <= set(
        dir(lockfast)
    )


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_a_file_is_short_and_has_a_docstring(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "the file has no docstring"


def test_the_repository_speaks_of_lockfast_alone():
    # Built here, so that this file names none of them: folders of one machine, a former name.
    banned = [*(f"/{folder}/" for folder in ("root", "work", "farm")), "".join(("hold", "fast"))]
    rooms = ("src", "lab", "tests", "tools", "bench", "docs", "examples")
    files = [*ROOT.glob("*.*"), *(path for room in rooms for path in (ROOT / room).rglob("*.*"))]
    for path in files:
        if path.suffix in (".py", ".md", ".toml", ".txt") and path.is_file():
            text = path.read_text(errors="replace")
            for text_part in banned:
                assert text_part not in text.lower(), f"{path} has {text_part!r}"
