"""The guard of a file: between processes, through death at every step, and who is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from databases import PATIENCE, Beside

import lockfast
from lockfast.guards import FileGuard


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


def python(code: str, *said: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", code, *map(str, said)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


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
    with pytest.raises(lockfast.StaleFence):  # a refused one lowered nothing
        guard.write(9, "stale")


def test_numbers_are_compared_as_numbers(path):
    guard = FileGuard(path)
    guard.write(9, "nine")
    guard.write(10, "ten")
    with pytest.raises(lockfast.StaleFence):
        guard.write(9, "nine")


def test_bytes_text_and_nothing(path):
    guard = FileGuard(path)
    for content in (b"\0\xff", "☂", b"", "x" * 300_000, "short"):
        guard.write(7, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    with pytest.raises(lockfast.ConfigurationError, match="bytearray"):
        guard.write(7, bytearray(b"x"))


def test_a_stale_body_does_not_run_and_a_good_one_may_append(path):
    guard = FileGuard(path)
    guard.write(7, "one\n")
    with guard.writing(9) as there, there.open("a") as file:
        file.write("two\n")
    with pytest.raises(lockfast.StaleFence), guard.writing(7):
        path.write_text("stale")
    assert path.read_text() == "one\ntwo\n"


def test_a_body_keeps_all_others_out_and_lets_them_in_when_it_fails(path):
    guard = FileGuard(path, timeout=0)
    with pytest.raises(ZeroDivisionError), guard.writing(7):
        with pytest.raises(lockfast.AcquireTimeout, match="another process"):
            FileGuard(path, timeout=0.02).write(9, "too early")
        assert 1 / 0
    FileGuard(path, timeout=0).write(9, "now")
    assert path.read_text() == "now"


def test_who_waits_is_let_in_and_then_judged(path):
    with FileGuard(path).writing(9):
        stale = Beside(lambda: FileGuard(path, timeout=None).write(7, "stale"))
        newer = Beside(lambda: FileGuard(path).write(9, "same"))
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


def test_many_processes_end_with_the_highest_and_nobody_reads_a_part(path):
    fences = list(range(1, 121))
    FileGuard(path).write(0, "0 " * 1000)
    writers = [python(WRITER, path, *fences[i::4]) for i in range(4)]
    over = threading.Event()

    def reader() -> int:
        highest = 0
        while not over.is_set():
            words = set(path.read_text().split())
            assert len(words) == 1, "a part of it"
            seen = int(words.pop())
            assert seen >= highest, "a stale one came after a newer"
            highest = seen
        return highest

    reading = Beside(reader)
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


# Dies before or after the given call of those that touch the disk.
DYING = """
import os, signal, sys
from lockfast.guards import FileGuard
path, step, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
calls = 0
def dying(real):
    def call(*said, **more):
        global calls
        calls += 1
        if calls == step and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*said, **more)
        if calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
for name in ("open", "fsync", "rename", "fchmod", "close"):
    setattr(os, name, dying(getattr(os, name)))
FileGuard(path).write(9, "new " * 1000)
"""


def test_death_at_any_step_leaves_the_old_or_the_new_and_a_mark_that_protects_it(tmp_path):
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
            FileGuard(path, timeout=0).write(9, "again")  # the same hold's next try
            assert path.read_text() == "again"
        if writer.returncode == 0:
            break
    assert writer.returncode == 0, "there are more steps"
    assert {"old", "new"} == set(outcomes)
    assert outcomes == sorted(outcomes, reverse=True), "once it is there, it stays"
    assert not list(tmp_path.glob(".*.new")), "what the dead left was used up"


def test_what_it_says_is_on_disk_before_it_takes_the_place_of_the_old(path, tmp_path):
    """Power cuts cannot be had here: what is checked is that each file, and then its folder, is
    told to go to disk, in the order that the rules at the top of the module give."""
    code = """
import os, sys
from lockfast.guards import FileGuard
told = []
def noted(name, real):
    def call(*said):
        what = said[0] if name == "rename" else os.readlink(f"/proc/self/fd/{said[0]}")
        told.append((name, os.path.basename(str(said[-1] if name == "rename" else what))))
        return real(*said)
    return call
for name in ("fsync", "rename"):
    setattr(os, name, noted(name, getattr(os, name)))
FileGuard(sys.argv[1]).write(9, "x")
print(told)
"""
    said, _ = python(code, path).communicate(timeout=PATIENCE)
    new, folder = ".report.json.new", tmp_path.name
    assert said.strip() == str(
        [
            ("fsync", new),
            ("rename", ".report.json.fence"),
            ("fsync", folder),
            ("fsync", new),
            ("rename", "report.json"),
            ("fsync", folder),
        ]
    )


def test_a_killed_writer_keeps_nobody_out(path):
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


def test_a_child_that_was_forked_meanwhile_keeps_nobody_out(path):
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


def test_two_ways_to_one_file_meet(path, tmp_path, monkeypatch):
    FileGuard(path).write(9, "x")
    link = tmp_path / "link"
    link.symlink_to(path)
    monkeypatch.chdir(tmp_path)
    for way in (link, "report.json", "./nowhere/../report.json"):
        with pytest.raises(lockfast.StaleFence):
            FileGuard(way).write(7, "stale")
    FileGuard(link).write(9, "through the link")
    assert link.is_symlink() and path.read_text() == "through the link"


def test_the_mode_of_the_file_stays(path):
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
def test_a_mark_that_cannot_be_read_refuses_everybody(path, text):
    FileGuard(path).write(7, "x")
    (path.parent / ".report.json.fence").write_bytes(text)
    with pytest.raises(lockfast.ConfigurationError, match="highest fence"):
        FileGuard(path).write(9, "y")
    assert path.read_text() == "x"


@pytest.mark.parametrize("timeout", [-1, "5", True])
def test_a_time_that_cannot_be_meant_is_refused(path, timeout):
    with pytest.raises(lockfast.ConfigurationError, match="timeout"):
        FileGuard(path, timeout=timeout)


NAMES: list[Callable[[], str]] = [lambda: "it's 100 % ☂", lambda: "x" * 200, lambda: ".hidden"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files_are_only_names(tmp_path, name):
    guard = FileGuard(tmp_path / name())
    guard.write(9, "x")
    with pytest.raises(lockfast.StaleFence) as caught:
        guard.write(7, "y")
    assert caught.value.name == str(tmp_path / name())
