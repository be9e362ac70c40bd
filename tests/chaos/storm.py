"""A storm: workers in many processes on one store, and a director that lets everything go wrong.

The director is sequential: one fault at a time, then it waits until every name is handed over
again, and measures how long that took. What the workers saw meanwhile is for `storm_verdict`.

Near workers contend for all names and far ones for ``slow`` alone, each side through proxies of
its own, so that the far side can be cut off from a store that others still reach.

What can go wrong with any store is here, and with a store that is one server; a store's own faults
are with it (`storm_redis`, `storm_sql`, `storm_zookeeper`).
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from storm_verdict import Amnesia

import lockfast
from lab.fault_proxy_control import FaultProxy
from lockfast import clock

NEAR = ("threads", "tasks", "threads")
PATIENCE = 40.0  # for anything that must come; then the storm fails
POLL = 0.005
LATE = 1.5  # leases: then somebody is in the way who should not be
ROUND = 8  # holds: more than there are contenders of any name
HERE = Path(__file__).parent


class Program:
    """A process of the storm that answers a line with a line. It ends with its stdin."""

    def __init__(self, script: str, *words: str, errors: Any) -> None:
        source = str(Path(lockfast.__file__).parent.parent)
        # Coverage of processes that are killed all the time is worth nothing.
        environment = {name: value for name, value in os.environ.items() if name[:4] != "COVE"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / script), *words],
            env=environment | {"PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert self.process.stdout is not None and self.process.stdin is not None
        self.reader, self.writer = self.process.stdout, self.process.stdin
        assert self.reader.readline() == "ready\n"

    def __call__(self, *order: object) -> Any:
        self.writer.write(json.dumps(order) + "\n")
        self.writer.flush()
        return json.loads(self.reader.readline())

    def end(self) -> None:
        self.writer.close()
        self.process.wait(PATIENCE)
        self.reader.close()


class Storm:
    """``leases`` are those of the names, of which ``slow`` is one. ``module`` is what workers need
    of the store, loaded once for all."""

    leases: dict[str, float]
    module: str

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.amnesias: list[Amnesia] = []
        # Kind of fault → name, and seconds from when it could go on until it did.
        self.recoveries: dict[str, list[tuple[str, float]]] = defaultdict(list)
        self.faults: dict[str, int] = defaultdict(int)
        self.late: list[str] = []
        self.near: dict[int, str] = {}  # pid → colour
        self.far: dict[int, str] = {}
        self.records: list[list[Any]] = []

    def ports(self) -> list[int]:
        """Of the servers, on loopback."""
        raise NotImplementedError

    def url(self, ports: Sequence[int]) -> str:
        raise NotImplementedError

    @contextmanager
    def raging(self) -> Iterator[Storm]:
        with ExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="lf"))
            self.stderr = Path(folder) / "stderr"
            errors = stack.enter_context(self.stderr.open("ab"))
            self.path = f"{folder}/witness"
            witness = Program("storm_witness.py", self.path, errors=errors)
            stack.callback(witness.end)
            self.nursery = Program("storm_workers.py", self.module, errors=errors)
            stack.callback(self.nursery.end)
            self.line = stack.enter_context(socket.socket(socket.AF_UNIX))
            self.line.connect(self.path)
            self.answers = stack.enter_context(self.line.makefile())
            self.near_nets, self.far_nets = (
                [stack.enter_context(FaultProxy(("127.0.0.1", port))) for port in self.ports()]
                for _side in ("near", "far")
            )
            for api in NEAR:
                self.spawn(api)
            self.spawn("threads", far=True)
            self.goes_on("start", clock.now())
            yield self

    def finish(self) -> tuple[list[int], int, str]:
        """Let all workers come to their end: their exit codes, how many did not end, and what was
        written to stderr."""
        self.ask("end")
        codes, left = self.nursery("wait", PATIENCE)
        report = f"{self.path}.json"
        self.ask("report", report)
        self.records = json.loads(Path(report).read_text())
        errors = self.stderr.read_text()
        if left:
            with lockfast.connect(self.url(self.ports())) as client:
                errors += "\n".join(str(client.inspect(name)) for name in self.leases)
        return codes, left, errors

    # -- workers -------------------------------------------------------------------------------

    def spawn(self, api: str, *, far: bool = False) -> None:
        url = self.url([net.port for net in (self.far_nets if far else self.near_nets)])
        leases = {"slow": self.leases["slow"]} if far else self.leases
        pid = self.nursery("spawn", api, url, self.path, leases)
        (self.far if far else self.near)[pid] = api

    def replace(self, pid: int) -> None:
        """A killed one; on the far side by one of the other colour."""
        if pid in self.near:
            self.spawn(self.near.pop(pid))
        else:
            self.spawn("tasks" if self.far.pop(pid) == "threads" else "threads", far=True)

    # -- the witness ---------------------------------------------------------------------------

    def ask(self, *question: object) -> Any:
        self.line.sendall(json.dumps(question).encode() + b"\n")
        return json.loads(self.answers.readline())

    def first(self, name: str, since: float, but: Sequence[int] = ()) -> float:
        """When somebody, but none of these, got it first after that moment; waits for it. If that
        takes too long, who is in the way is remembered."""
        until, late = clock.now() + PATIENCE, since + LATE * self.leases[name]
        while not (record := self.ask("first", name, since, but)):
            if (now := clock.now()) > min(until, late):
                self.late.append(f"{now - since:.2f} s, {self.near}, {self.seen(name)}")
                assert now <= until, f"nobody got it any more: {self.late[-1]}"
                late += self.leases[name]
            time.sleep(POLL)
        return float(record[6])

    def seen(self, name: str) -> object:
        """Who has it and who waits, or why that cannot be asked just now."""
        try:
            with lockfast.connect(self.url(self.ports())) as client:
                return client.inspect(name)
        except lockfast.BackendError as error:
            return error

    def catch(self, names: Sequence[str], pids: Sequence[int] = ()) -> dict[str, int]:
        """Holders of these names that now wait for our answer; name → pid."""
        for name in names:
            self.ask("catch", name, pids)
        until = clock.now() + PATIENCE
        while len(caught := self.ask("caught")) < len(names):
            assert clock.now() < until, f"of {names} only {caught} are handed over"
            time.sleep(POLL)
        # At some moment of their leases, renewed or not.
        time.sleep(self.random.uniform(0, 0.4) * min(self.leases[name] for name in names))
        return {name: record[3] for name, record in caught.items()}

    def goes_on(self, kind: str, since: float, names: Sequence[str] = ()) -> None:
        self.faults[kind] += 1
        for name in names or self.leases:
            self.recoveries[kind].append((name, self.first(name, since) - since))

    def calm(self) -> None:
        """Let every name go round. A claim that was given up on may have been executed all the
        same, and nobody knows of it: when its turn has come and gone, the next fault is measured
        alone."""
        for name in self.leases:
            moment = clock.now()
            for _ in range(ROUND):
                moment = self.first(name, moment)
        time.sleep(self.random.uniform(0.1, 0.25))

    # -- faults of workers ---------------------------------------------------------------------

    def kill_holders(self) -> None:
        caught = self.catch(list(self.leases))
        self.kill(caught, sorted(set(caught.values()))[:2])

    def kill(self, caught: dict[str, int], victims: list[int]) -> None:
        """Those, among them holders of names. Who asks next gets it a lease later, at most."""
        moments = {}
        for pid in victims:
            moments[pid] = clock.now()
            self.nursery("kill", pid)
        for name in caught:
            self.ask("answer", name, "go")
        for pid in victims:
            self.replace(pid)
            self.faults["kill"] += 1
        for name, pid in caught.items():
            if pid in victims:
                recovery = self.first(name, moments[pid], victims) - moments[pid]
                self.recoveries["kill"].append((name, recovery))

    def stop_a_holder(self) -> None:
        """For longer than any lease, and until the next has written and left; then it goes on, and
        writes without looking."""
        name = self.random.choice(list(self.leases))
        pid = self.catch([name])[name]
        self.faults["stop"] += 1
        stopped = clock.now()
        self.nursery("stop", pid)
        got = self.first(name, stopped, [pid])
        self.recoveries["stop"].append((name, got - stopped))
        self.first(name, got, [pid])
        time.sleep(max(stopped + 1.1 * self.leases["slow"] - clock.now(), 0))
        self.nursery("cont", pid)
        self.ask("answer", name, "rush")

    def stop_anybody(self) -> None:
        """Wherever it is in its turn, and for a part of a lease."""
        pid = self.random.choice(list(self.near))
        self.nursery("stop", pid)
        time.sleep(self.random.uniform(0.1, 1.0) * self.leases["quick"])
        self.nursery("cont", pid)
        self.goes_on("short stop", clock.now())

    def cut_off_a_holder(self, latency: float = 0.0) -> None:
        """Its own clock must end its belief before the others get it."""
        pid = self.catch(["slow"], list(self.far))["slow"]
        self.ask("answer", "slow", "stay")
        for net in self.far_nets:
            net.latency = latency
        time.sleep(self.leases["slow"] * self.random.uniform(0.5, 0.75))
        self.faults["cut off"] += 1
        cut = clock.now()
        for net in self.far_nets:
            net.black_hole()
        self.recoveries["cut off"].append(("slow", self.first("slow", cut, [pid]) - cut))
        until = cut + PATIENCE
        while not self.ask("fallen", pid):
            assert clock.now() < until, "who was cut off believes for ever"
            time.sleep(POLL)
        for net in self.far_nets:
            net.latency = 0
            net.heal()
        self.nursery("kill", pid)  # one of the other colour comes
        self.replace(pid)

    def cut_off_a_distant_holder(self) -> None:
        """Its last renewals are answered late, though within their budget: whoever counted from the
        answers would believe in it for too long."""
        self.cut_off_a_holder(self.leases["slow"] / 16)

    # -- faults of connections -----------------------------------------------------------------

    def reset_connections(self) -> None:
        for net in self.near_nets:
            net.reset()
        self.goes_on("reset", clock.now())

    # -- all of it -----------------------------------------------------------------------------

    def rage(self, programme: dict[str, int]) -> None:
        faults: list[Callable[[], None]] = [
            getattr(self, name) for name, times in programme.items() for _ in range(times)
        ]
        self.random.shuffle(faults)
        for fault in faults:
            print(f"{clock.now():.3f} {fault.__name__}")  # shown beside what went wrong
            fault()
            self.calm()


class ServerStorm(Storm):
    """On one server: it restarts and freezes, and what it answers is lost."""

    def __init__(self, server: Any, seed: int) -> None:
        super().__init__(seed)
        self.server = server

    def ports(self) -> list[int]:
        return [self.server.port]

    def restart_with_data(self) -> None:
        self.server.restart(keep_data=True)
        self.goes_on("restart", clock.now())

    def freeze_shortly(self) -> None:
        self.freeze(0.3 * self.leases["quick"], "short freeze")

    def freeze_for_long(self) -> None:
        self.freeze(1.2 * self.leases["slow"], "long freeze")

    def freeze(self, seconds: float, kind: str) -> None:
        self.server.pause()
        time.sleep(seconds)
        self.server.resume()
        self.goes_on(kind, clock.now())

    def requests(self) -> list[bytes]:
        """What is in those requests whose replies may get lost, one kind each."""
        raise NotImplementedError

    def lose_replies(self) -> None:
        match = self.random.choice(self.requests())
        then = self.random.choice(["reset", "silence"])
        (net,) = self.near_nets
        before = net.dropped
        net.lose_replies(3, match=match, then=then)  # type: ignore[arg-type]
        until = clock.now() + 0.5
        while net.dropped - before < 3 and clock.now() < until:
            time.sleep(POLL)
        net.lose_replies(0)
        net.heal()
        self.faults["dropped replies"] += net.dropped - before
        self.goes_on("drop", clock.now())
