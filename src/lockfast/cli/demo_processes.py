"""The processes of the demo, and the folder that they share. Ours alone, and gone afterwards."""

from __future__ import annotations

import contextlib
import select
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockfast.cli import demo_worker as worker

# How long anything may take on a machine that is busy with other things. Then the show has failed.
PATIENCE = 30.0


class Failed(Exception):
    """Something did not happen that should have."""


class Actor:
    """One process of ours (`demo_worker`). In a group of its own: Ctrl-C is for the director."""

    def __init__(self, folder: Path, number: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker.__name__, str(folder), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            process_group=0,
        )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._ear, self._mouth = self._process.stdin, self._process.stdout

    def tell(self, *words: object) -> None:
        try:
            print(*words, file=self._ear, flush=True)
        except OSError:
            raise Failed(f"process {self.pid} is gone") from None

    def answer(self) -> list[str]:
        return self.next_answer([self])[1]

    @staticmethod
    def next_answer(actors: Sequence[Actor]) -> tuple[Actor, list[str]]:
        """Whoever says something first."""
        speakers = {actor._mouth: actor for actor in actors}
        ready, _, _ = select.select(list(speakers), [], [], PATIENCE)
        if not ready:
            raise Failed(f"no answer from {[actor.pid for actor in actors]} in {PATIENCE:g} s")
        words = ready[0].readline().split()
        if not words:
            raise Failed(f"process {speakers[ready[0]].pid} ended by itself")
        return speakers[ready[0]], words

    def signal(self, signum: int) -> None:
        self._process.send_signal(signum)

    def end(self) -> None:
        self._process.kill()  # works on a stopped one too
        self._process.wait()
        for pipe in (self._ear, self._mouth):
            with contextlib.suppress(OSError):  # what it was told last, nobody read
                pipe.close()


@contextlib.contextmanager
def shared_folder(processes: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lockfast-demo-"))
    try:
        (folder / worker.COUNTER).write_bytes(b"")
        (folder / worker.SCORES).write_bytes(bytes(worker.SLOT * processes))
        with contextlib.closing(sqlite3.connect(folder / worker.WITNESS)) as witness, witness:
            witness.execute("CREATE TABLE account (text TEXT, fence INTEGER)")
            witness.execute("INSERT INTO account VALUES ('', 0)")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def actors(folder: Path, number: int) -> Iterator[list[Actor]]:
    everybody: list[Actor] = []
    try:
        for index in range(number):
            everybody.append(Actor(folder, index))
        yield list(everybody)
    finally:
        for actor in everybody:
            actor.end()
