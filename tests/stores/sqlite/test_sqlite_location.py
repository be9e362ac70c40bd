"""The location of the file: refused URLs, the default path, and its permissions."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast.stores.sqlite import endpoint

SOURCE = str(Path(lockfast.__file__).parent.parent)
SHOW_DEFAULT = "from lockfast.stores.sqlite.endpoint import default_path as d; print(d())"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:locks.db",
        "sqlite:./locks.db",
        "sqlite://locks.db",
        "sqlite://",
        "sqlite://var/lib/locks.db",
        "sqlite://localhost/var/lib/locks.db",
        "sqlite:///tmp/locks.db?mode=ro",
        "sqlite:///tmp/locks.db#here",
    ],
)
def test_a_url_without_three_slashes_or_with_more_after_the_path_is_refused(url: str) -> None:
    with pytest.raises(lockfast.ConfigurationError, match="sqlite:///absolute/path") as refused:
        lockfast.connect(url)
    assert repr(url) in str(refused.value)


@pytest.mark.parametrize(
    "url, hint",
    [
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///tmp/a%00b", "NUL"),
        ("sqlite:///", "folder"),
        ("sqlite:///tmp", "folder"),
        ("sqlite:///tmp/", "folder"),
    ],
)
def test_an_implausible_path_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(lockfast.ConfigurationError, match=hint):
        lockfast.connect(url)


def test_a_path_is_taken_literally_after_unquoting(tmp_path: Path) -> None:
    with lockfast.connect(f"sqlite://{tmp_path}/a%20b%3Fc.db") as client:
        client.lock("n").acquire().release()
    assert (tmp_path / "a b?c.db").exists()


def test_two_spellings_of_one_path_are_one_store(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with (
        lockfast.connect(f"sqlite://{tmp_path}/locks.db") as one,
        lockfast.connect(f"sqlite:///{tmp_path}/sub/../locks.db") as two,
    ):
        one.lock("n").acquire()
        assert two.lock("n").try_acquire() is None


def test_a_symlink_to_itself_is_an_error_that_names_it(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, loop / "locks.db"):
        with pytest.raises(lockfast.LockfastError, match=str(path)):
            lockfast.connect(f"sqlite://{path}").lock("n").acquire(timeout=5)


# ---- the default path ------------------------------------------------------------------------


def test_the_default_path_does_not_depend_on_the_environment(tmp_path: Path) -> None:
    """A cron job and a shell must share the file."""
    bare = {"PYTHONPATH": SOURCE}
    private = {name: str(tmp_path) for name in ("HOME", "TMPDIR", "TEMP", "XDG_RUNTIME_DIR")}
    private |= {"XDG_STATE_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "USER": "x"}
    paths = {
        subprocess.run(
            [sys.executable, "-c", SHOW_DEFAULT],
            env=environment,
            cwd=folder,
            check=True,
            capture_output=True,
            timeout=60,
        ).stdout
        for environment, folder in ((bare, "/"), (bare | private, tmp_path))
    }
    assert paths == {f"{endpoint.default_path()}\n".encode()}
    assert str(os.getuid()) in str(endpoint.default_path())


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A substitute for /var/tmp."""
    monkeypatch.setattr(endpoint, "DEFAULT_PARENT", tmp_path)
    monkeypatch.delenv("LOCKFAST_URL", raising=False)
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_default_folder_is_created_for_this_user_alone(parent: Path) -> None:
    before = os.umask(0)
    try:
        with lockfast.connect() as client:
            client.lock("n").acquire().release()
    finally:
        os.umask(before)
    (folder,) = parent.iterdir()
    assert mode(folder) == 0o700
    assert (folder / "locks.db").exists()


def test_a_default_folder_that_was_opened_to_others_is_made_private_again(parent: Path) -> None:
    folder = endpoint.default_path().parent
    folder.mkdir()
    folder.chmod(0o777)
    with lockfast.connect() as client:
        client.lock("n").acquire().release()
    assert mode(folder) == 0o700


def another_users_folder(folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder to another user")
    folder.mkdir(0o777)
    os.chown(folder, 65534, 65534)


def a_symlink_to_our_own_folder(folder: Path) -> None:
    target = folder.with_name("target")
    target.mkdir(0o700)
    folder.symlink_to(target)


def a_dangling_symlink(folder: Path) -> None:
    folder.symlink_to(folder.with_name("nowhere"))


def a_file(folder: Path) -> None:
    folder.touch(0o600)


@pytest.mark.parametrize(
    "put", [another_users_folder, a_symlink_to_our_own_folder, a_dangling_symlink, a_file]
)
def test_a_default_folder_that_another_user_may_have_created_is_refused(
    parent: Path, put: Callable[[Path], None]
) -> None:
    put(endpoint.default_path().parent)
    before = sorted(parent.rglob("*"))
    with pytest.raises(lockfast.ConfigurationError, match="LOCKFAST_URL"):
        lockfast.connect()
    assert sorted(parent.rglob("*")) == before


# ---- awkward paths ---------------------------------------------------------------------------

WAITER = """
client = lockfast.connect(url); lock = client.lock("n")
report("ready"); hold = lock.acquire(timeout=60); report(time.monotonic()); hold.release()
"""
# Without a wake-up the waiter would be served only at its refresh, after 1.5 s.
PROMPT = 1.0


def hand_over(start: Callable[..., Any], ours: str, theirs: str) -> float:
    """The time that a waiting process takes to get the lock after its release."""
    with lockfast.connect(ours) as client:
        hold = client.lock("n").acquire(timeout=60)
        waiter = start(WAITER, theirs)
        assert waiter.line() == "ready"
        until = time.monotonic() + 60
        while not client.inspect("n").waiters:
            assert time.monotonic() < until, waiter.line(0)
            time.sleep(0.005)
        time.sleep(0.1)
        began = time.monotonic()
        hold.release()
        return float(waiter.line()) - began


def test_a_path_too_long_for_a_socket_still_wakes_other_processes(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / ("f" * 90) / ("g" * 90)
    folder.mkdir(parents=True)
    url = f"sqlite://{folder}/locks.db"
    assert len(url) > 200
    assert hand_over(start, url, url) < PROMPT


@pytest.mark.parametrize("length", [99, 100, 101, 106, 107, 108, 109])
def test_a_path_around_the_length_limit_still_wakes_other_processes(
    start: Callable[..., Any], length: int
) -> None:
    """The address of a socket has 108 bytes."""
    suffix = len("/locks.db.d/0123456789abcdef.wake")
    with tempfile.TemporaryDirectory(prefix="lf", dir="/tmp") as short:
        folder = Path(short, "x" * (length - suffix - len(short) - 1))
        folder.mkdir()
        url = f"sqlite://{folder}/locks.db"
        assert hand_over(start, url, url) < PROMPT


def test_a_symlink_to_the_file_is_the_same_store_and_wakes_its_waiters(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    with lockfast.connect(f"sqlite://{tmp_path}/real/locks.db") as client:
        client.lock("n").acquire().release()
    symlink = tmp_path / "link.db"
    symlink.symlink_to(tmp_path / "real" / "locks.db")
    assert hand_over(start, f"sqlite://{tmp_path}/real/locks.db", f"sqlite://{symlink}") < PROMPT
