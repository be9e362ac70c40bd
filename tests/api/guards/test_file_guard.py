"""`FileGuard`: across processes, after a crash at every step, and with stale fences."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from databases import PATIENCE, InThread

import lockfast
from lockfast.guards import FileGuard


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_equal_and_higher_fences_write_and_a_lower_one_is_refused(path):
    guard = FileGuard(path)
    for fence in (7, 7, 9, 2**63 - 1, 2**63 - 1):
        guard.write(fence, f"of {fence}")
        assert path.read_text() == f"of {fence}"
    with pytest.raises(lockfast.StaleFence) as caught:
        guard.write(2**63 - 2, "stale")
    error = caught.value
    assert (error.name, error.fence, error.seen) == (str(path), 2**63 - 2, 2**63 - 1)
    assert path.read_text() == f"of {2**63 - 1}"
    with pytest.raises(lockfast.StaleFence):  # a refused write does not lower the mark
        guard.write(9, "stale")


def test_fences_are_compared_as_numbers(path):
    guard = FileGuard(path)
    guard.write(9, "nine")
    guard.write(10, "ten")
    with pytest.raises(lockfast.StaleFence):
        guard.write(9, "nine")


def test_bytes_and_str_are_written_and_other_types_refused(path):
    guard = FileGuard(path)
    for content in (b"\0\xff", "☂", b"", "x" * 300_000, "short"):
        guard.write(7, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    with pytest.raises(lockfast.ConfigurationError, match="bytearray"):
        guard.write(7, bytearray(b"x"))


def test_a_stale_body_does_not_run_and_a_valid_one_may_append(path):
    guard = FileGuard(path)
    guard.write(7, "one\n")
    with guard.writing(9) as there, there.open("a") as file:
        file.write("two\n")
    with pytest.raises(lockfast.StaleFence), guard.writing(7):
        path.write_text("stale")
    assert path.read_text() == "one\ntwo\n"


def test_a_body_excludes_other_writers_until_it_ends_or_fails(path):
    guard = FileGuard(path, timeout=0)
    with pytest.raises(ZeroDivisionError), guard.writing(7):
        with pytest.raises(lockfast.AcquireTimeout, match="another process"):
            FileGuard(path, timeout=0.02).write(9, "too early")
        assert 1 / 0
    FileGuard(path, timeout=0).write(9, "now")
    assert path.read_text() == "now"


def test_a_waiting_writer_is_checked_after_its_wait(path):
    with FileGuard(path).writing(9):
        stale = InThread(lambda: FileGuard(path, timeout=None).write(7, "stale"))
        newer = InThread(lambda: FileGuard(path).write(9, "same"))
        assert not stale.is_over and not newer.is_over
    assert isinstance(stale.outcome(), lockfast.StaleFence)
    assert newer.outcome() is None
    assert path.read_text() == "same"


WRITER = """
import sys
from lockfast import StaleFence
from lockfast.guards import FileGuard
path, *fences = sys.argv[1:]
guard, refused = FileGuard(path), 0
sys.stdin.readline()
for fence in map(int, fences):
    try:
        guard.write(fence, f"{fence} " * 1000)
    except StaleFence as error:
        assert error.seen > fence
        refused += 1
print(refused)
"""


def test_after_concurrent_writers_the_highest_fence_remains_and_no_reader_sees_a_part(path):
    fences = list(range(1, 121))
    FileGuard(path).write(0, "0 " * 1000)
    writers = [python(WRITER, path, *fences[i::4]) for i in range(4)]
    over = threading.Event()

    def reader() -> int:
        highest = 0
        while not over.is_set():
            numbers = set(path.read_text().split())
            assert len(numbers) == 1, "read a part of the content"
            seen = int(numbers.pop())
            assert seen >= highest, "a stale write followed a newer one"
            highest = seen
        return highest

    reading = InThread(reader)
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=PATIENCE)
        assert writer.returncode == 0
    over.set()
    assert not isinstance(reading.outcome(), Exception), reading.outcome()
    assert path.read_text().split()[0] == "120"
    with pytest.raises(lockfast.StaleFence):
        FileGuard(path).write(119, "stale")


# Kills itself before or after the step-th call of those that touch the disk.
DYING = """
import os, signal, sys
from lockfast.guards import FileGuard
path, step, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
calls = 0
def dying(real):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == step and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
for name in ("open", "fsync", "rename", "fchmod", "close"):
    setattr(os, name, dying(getattr(os, name)))
FileGuard(path).write(9, "new " * 1000)
"""


def test_a_crash_at_any_step_leaves_the_old_or_the_new_content_and_a_mark_that_protects_it(
    tmp_path,
):
    outcomes = []
    for step in range(1, 50):
        for when in ("before", "after"):
            path = tmp_path / f"{step}-{when}"
            FileGuard(path).write(7, "old " * 1000)
            writer = python(DYING, path, step, when)
            writer.communicate(timeout=PATIENCE)
            content = path.read_text()
            assert content in ("old " * 1000, "new " * 1000)
            if content.startswith("new"):
                with pytest.raises(lockfast.StaleFence):
                    FileGuard(path, timeout=0).write(8, "stale")
            outcomes.append(content[:3])
            FileGuard(path, timeout=0).write(9, "again")  # the same hold tries again
            assert path.read_text() == "again"
        if writer.returncode == 0:
            break
    assert writer.returncode == 0, "there are more steps than tested"
    assert {"old", "new"} == set(outcomes)
    assert outcomes == sorted(outcomes, reverse=True), "once the new content is there, it stays"
    assert not list(tmp_path.glob(".*.new")), "temporary files of crashed writers remain"


def test_each_file_is_synced_before_it_is_renamed_and_its_folder_after(path, tmp_path):
    """A power cut cannot be tested; the order of fsync and rename calls can, against the rules at
    the top of the module."""
    code = """
import os, sys
from lockfast.guards import FileGuard
calls = []
def recorded(name, real):
    def call(*args):
        path = args[-1] if name == "rename" else os.readlink(f"/proc/self/fd/{args[0]}")
        calls.append((name, os.path.basename(str(path))))
        return real(*args)
    return call
for name in ("fsync", "rename"):
    setattr(os, name, recorded(name, getattr(os, name)))
FileGuard(sys.argv[1]).write(9, "x")
print(calls)
"""
    output, _ = python(code, path).communicate(timeout=PATIENCE)
    new, folder = ".report.json.new", tmp_path.name
    assert output.strip() == str(
        [
            ("fsync", new),
            ("rename", ".report.json.fence"),
            ("fsync", folder),
            ("fsync", new),
            ("rename", "report.json"),
            ("fsync", folder),
        ]
    )


def test_a_killed_writer_releases_the_lock(path):
    code = """
import sys, time
from lockfast.guards import FileGuard
with FileGuard(sys.argv[1]).writing(7):
    print("in", flush=True)
    time.sleep(60)
"""
    writer = python(code, path)
    assert writer.stdout is not None and writer.stdout.readline() == "in\n"
    with pytest.raises(lockfast.AcquireTimeout):
        FileGuard(path, timeout=0).write(9, "x")
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=PATIENCE)
    FileGuard(path).write(9, "x")


def test_a_child_forked_during_a_write_does_not_keep_the_lock(path):
    code = """
import os, sys
from lockfast.guards import FileGuard
path = sys.argv[1]
with FileGuard(path).writing(7):
    child = os.fork()
    if not child:
        sys.stdin.read()
        os._exit(0)
FileGuard(path, timeout=0).write(9, "x")
print("done", flush=True)
"""
    writer = python(code, path)
    assert writer.stdout is not None and writer.stdout.readline() == "done\n"
    writer.communicate(timeout=PATIENCE)


def test_different_paths_to_one_file_share_its_mark(path, tmp_path, monkeypatch):
    FileGuard(path).write(9, "x")
    symlink = tmp_path / "symlink"
    symlink.symlink_to(path)
    monkeypatch.chdir(tmp_path)
    for way in (symlink, "report.json", "./nowhere/../report.json"):
        with pytest.raises(lockfast.StaleFence):
            FileGuard(way).write(7, "stale")
    FileGuard(symlink).write(9, "through the symlink")
    assert symlink.is_symlink() and path.read_text() == "through the symlink"


def test_a_write_keeps_the_file_mode(path):
    FileGuard(path).write(7, "x")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    path.chmod(0o640)
    FileGuard(path).write(9, "y")
    assert path.stat().st_mode & 0o777 == 0o640


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("text", [b"", b"nine\n", b"-9\n", b"9 9\n", b"\xff"])
def test_an_unreadable_mark_refuses_every_write(path, text):
    FileGuard(path).write(7, "x")
    (path.parent / ".report.json.fence").write_bytes(text)
    with pytest.raises(lockfast.ConfigurationError, match="highest fence"):
        FileGuard(path).write(9, "y")
    assert path.read_text() == "x"


@pytest.mark.parametrize("timeout", [-1, "5", True])
def test_an_invalid_timeout_is_refused(path, timeout):
    with pytest.raises(lockfast.ConfigurationError, match="timeout"):
        FileGuard(path, timeout=timeout)


NAMES: list[Callable[[], str]] = [lambda: "it's 100 % ☂", lambda: "x" * 200, lambda: ".hidden"]


@pytest.mark.parametrize("name", NAMES)
def test_file_names_with_special_characters_work(tmp_path, name):
    guard = FileGuard(tmp_path / name())
    guard.write(9, "x")
    with pytest.raises(lockfast.StaleFence) as caught:
        guard.write(7, "y")
    assert caught.value.name == str(tmp_path / name())
