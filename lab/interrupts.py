"""A storm of interrupts: ``python -m lab.interrupts URL [--count N]``.

A signal handler raises an exception at random instants of ``with client.lock(name)``, as Ctrl-C, a
worker's soft time limit or a test's alarm do. After each one nothing may be held by this client,
nothing may be renewed, and the exception must have reached the caller. Counted are

- kept: holds that nobody will release, and that the keeper renews;
- left: holds in the client's ledger although the block has ended, not renewed any more;
- stranded: holds at the store that the client does not know; their leases end them;
- swallowed: exceptions that the handler raised and that nobody caught;
- poisoned: names that this client cannot acquire any more.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from types import FrameType

import lockfast
from lockfast import AcquireTimeout, BackendError, HoldLost

SHORTEST, LONGEST = 50e-6, 1e-3  # seconds from the start of a cycle to the signal
PATIENCE = 5.0  # seconds for the keeper to withdraw what an interrupt left at the store


class Interrupt(BaseException):
    """The exception that the signal handler raises."""


@dataclass
class Report:
    """The counts of a storm."""

    interrupts: int = 0
    cycles: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        found = ", ".join(f"{self.counts[kind]} {kind}" for kind in KINDS)
        return f"{self.interrupts} interrupts in {self.cycles} cycles: {found}"


KINDS = ("kept", "left", "stranded", "swallowed", "poisoned")


class Storm:
    """A client whose cycles are interrupted."""

    def __init__(self, url: str, seed: int = 0) -> None:
        self.url = url
        self.client = lockfast.connect(url)
        self.report = Report()
        self._dice = random.Random(seed)
        self._raised = 0
        self._names = 0

    def run(self, count: int, seconds: float = 3600.0) -> Report:
        """Raise ``count`` exceptions, or fewer if that takes longer than ``seconds``."""
        until = time.monotonic() + seconds
        before = signal.signal(signal.SIGALRM, self._raise)
        try:
            while self._raised < count and time.monotonic() < until:
                self._cycle()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.report.interrupts = self._raised
        self.client.close()
        return self.report

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self._raised += 1
        raise Interrupt

    def _cycle(self) -> None:
        name = f"n{self._names}"
        raised, caught = self._raised, 0
        lock = self.client.lock(name)
        try:
            signal.setitimer(signal.ITIMER_REAL, self._dice.uniform(SHORTEST, LONGEST))
            while self._raised == raised:  # the signal comes in the middle of it
                with lock:
                    pass
                self.report.cycles += 1
        except Interrupt:
            caught = 1
        except (HoldLost, BackendError, AcquireTimeout):
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.report.counts["poisoned"] += 1
            self._names += 1
        self._judge(name, self._raised - raised, caught)

    def _judge(self, name: str, raised: int, caught: int) -> None:
        if raised > caught:
            self.report.counts["swallowed"] += 1
        ledger = self.client._core.ledger
        held = list(ledger.by_owner.values())
        if not held and not self.client.inspect(name).holders:
            return
        self._names += 1  # the next cycle must not meet what this one left
        if any(one.claim.id in ledger.kept for one in held):
            self.report.counts["kept"] += 1
        elif held:
            self.report.counts["left"] += 1
        else:
            until = time.monotonic() + PATIENCE
            while self.client.inspect(name).holders and time.monotonic() < until:
                time.sleep(0.01)
            self.report.counts["stranded"] += bool(self.client.inspect(name).holders)
        if held:
            self.client.close()
            self.client = lockfast.connect(self.url)


def main() -> int:
    parser = argparse.ArgumentParser(description="raise exceptions at random instants of a lock")
    parser.add_argument("url", metavar="URL", nargs="?", default="memory://")
    parser.add_argument("--count", type=int, default=10_000, help="interrupts (default: 10000)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="end after that time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = Storm(options.url, options.seed).run(options.count, options.seconds)
    print(report)
    return 1 if sum(report.counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
