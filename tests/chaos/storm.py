"""A storm of faults: workers in many processes on one store, and a director that injects faults.

The director is sequential: it injects one fault, waits until every name is handed over again, and
measures the time. `storm_checker` then judges the workers' records.

Local workers contend for all names, remote ones for ``slow`` alone. Each group connects through
proxies of its own, so that the remote side can be cut off from a store that the others still reach.

This module has the faults that any store and any single server can suffer; the faults of one kind
of store are in its own module (`storm_redis`, `storm_sql`, `storm_zookeeper`).
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

from storm_checker import Amnesia

import lockfast
from lab.fault_proxy import FaultProxy
from lockfast import clock

LOCAL_APIS = ("threads", "tasks", "threads")
PATIENCE = 40.0  # seconds for any expected event; after that the storm fails
POLL = 0.005
LATE = 1.5  # leases after which a recovery counts as late, and the state of the name is recorded
ROUND = 8  # holds: more than any name has contenders
HERE = Path(__file__).parent


class Program:
    """A process of the storm that answers each line with a line, and ends when stdin closes."""

    def __init__(self, script: str, *arguments: str, errors: Any) -> None:
        source = str(Path(lockfast.__file__).parent.parent)
        # Coverage of processes that are killed all the time is worth nothing.
        environment = {name: value for name, value in os.environ.items() if name[:4] != "COVE"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
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
    """The director of a storm.

    ``leases`` maps the names, of which ``slow`` is one, to their leases. ``module`` is the module
    of the store, imported once before the workers are forked.
    """

    leases: dict[str, float]
    module: str

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.amnesias: list[Amnesia] = []
        # Kind of fault → the name, and the seconds from the end of the fault to the next hold.
        self.recoveries: dict[str, list[tuple[str, float]]] = defaultdict(list)
        self.faults: dict[str, int] = defaultdict(int)
        self.late: list[str] = []
        self.local: dict[int, str] = {}  # pid → API
        self.remote: dict[int, str] = {}
        self.records: list[list[Any]] = []

    def ports(self) -> list[int]:
        """Return the ports of the servers on loopback."""
        raise NotImplementedError

    def url(self, ports: Sequence[int]) -> str:
        raise NotImplementedError

    @contextmanager
    def running(self) -> Iterator[Storm]:
        with ExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="lf"))
            self.stderr = Path(folder) / "stderr"
            errors = stack.enter_context(self.stderr.open("ab"))
            self.path = f"{folder}/witness"
            witness = Program("storm_witness.py", self.path, errors=errors)
            stack.callback(witness.end)
            self.nursery = Program("storm_workers.py", self.module, errors=errors)
            stack.callback(self.nursery.end)
            self.witness = stack.enter_context(socket.socket(socket.AF_UNIX))
            self.witness.connect(self.path)
            self.answers = stack.enter_context(self.witness.makefile())
            self.local_proxies, self.remote_proxies = (
                [stack.enter_context(FaultProxy(("127.0.0.1", port))) for port in self.ports()]
                for _side in ("local", "remote")
            )
            for api in LOCAL_APIS:
                self.spawn(api)
            self.spawn("threads", remote=True)
            self.wait_for_recovery("start", clock.now())
            yield self

    def finish(self) -> tuple[list[int], int, str]:
        """End all workers; return their exit codes, how many did not end, and their stderr."""
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

    def spawn(self, api: str, *, remote: bool = False) -> None:
        proxies = self.remote_proxies if remote else self.local_proxies
        url = self.url([proxy.port for proxy in proxies])
        leases = {"slow": self.leases["slow"]} if remote else self.leases
        pid = self.nursery("spawn", api, url, self.path, leases)
        (self.remote if remote else self.local)[pid] = api

    def replace(self, pid: int) -> None:
        """Replace a killed worker; on the remote side by one of the other API."""
        if pid in self.local:
            self.spawn(self.local.pop(pid))
        else:
            self.spawn("tasks" if self.remote.pop(pid) == "threads" else "threads", remote=True)

    # -- the witness ---------------------------------------------------------------------------

    def ask(self, *question: object) -> Any:
        self.witness.sendall(json.dumps(question).encode() + b"\n")
        return json.loads(self.answers.readline())

    def first_hold(self, name: str, since: float, excluded: Sequence[int] = ()) -> float:
        """Wait for the first hold of the name since that moment; return when it was acquired.

        Holds of the excluded pids do not count. If it takes too long, the holders and waiters in
        the way are recorded in `late`.
        """
        until, late = clock.now() + PATIENCE, since + LATE * self.leases[name]
        while not (record := self.ask("first", name, since, excluded)):
            if (now := clock.now()) > min(until, late):
                self.late.append(f"{now - since:.2f} s, {self.local}, {self.snapshot(name)}")
                assert now <= until, f"nobody acquired {name} any more: {self.late[-1]}"
                late += self.leases[name]
            time.sleep(POLL)
        return float(record[6])

    def snapshot(self, name: str) -> object:
        """Return the name's holders and waiters, or the error that prevents looking at them."""
        try:
            with lockfast.connect(self.url(self.ports())) as client:
                return client.inspect(name)
        except lockfast.BackendError as error:
            return error

    def catch(self, names: Sequence[str], pids: Sequence[int] = ()) -> dict[str, int]:
        """Wait until a holder of each name waits for our order; return name → pid."""
        for name in names:
            self.ask("catch", name, pids)
        until = clock.now() + PATIENCE
        while len(caught := self.ask("caught")) < len(names):
            assert clock.now() < until, f"of {names} only {caught} are handed over"
            time.sleep(POLL)
        # Continue at a random moment of their leases, before or after a renewal.
        time.sleep(self.random.uniform(0, 0.4) * min(self.leases[name] for name in names))
        return {name: record[3] for name, record in caught.items()}

    def wait_for_recovery(self, kind: str, since: float, names: Sequence[str] = ()) -> None:
        """Wait until each name is acquired again, and record how long that took."""
        self.faults[kind] += 1
        for name in names or self.leases:
            self.recoveries[kind].append((name, self.first_hold(name, since) - since))

    def settle(self) -> None:
        """Let every name pass through all its contenders.

        The server may have executed a claim that its client gave up on. Once such a stray claim has
        been granted and has run out, it cannot distort the measurement of the next fault.
        """
        for name in self.leases:
            moment = clock.now()
            for _ in range(ROUND):
                moment = self.first_hold(name, moment)
        time.sleep(self.random.uniform(0.1, 0.25))

    # -- faults of workers ---------------------------------------------------------------------

    def kill_holders(self) -> None:
        caught = self.catch(list(self.leases))
        self.kill(caught, sorted(set(caught.values()))[:2])

    def kill(self, caught: dict[str, int], victims: list[int]) -> None:
        """Kill the victims, among them holders; each name must go on a lease later at most."""
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
                recovery = self.first_hold(name, moments[pid], victims) - moments[pid]
                self.recoveries["kill"].append((name, recovery))

    def stop_a_holder(self) -> None:
        """Stop a holder for longer than any lease, and until its successor has written and left.

        The holder then resumes and writes without a check.
        """
        name = self.random.choice(list(self.leases))
        pid = self.catch([name])[name]
        self.faults["stop"] += 1
        stopped = clock.now()
        self.nursery("stop", pid)
        acquired = self.first_hold(name, stopped, [pid])
        self.recoveries["stop"].append((name, acquired - stopped))
        self.first_hold(name, acquired, [pid])
        time.sleep(max(stopped + 1.1 * self.leases["slow"] - clock.now(), 0))
        self.nursery("cont", pid)
        self.ask("answer", name, "unchecked")

    def stop_any_worker(self) -> None:
        """Stop a worker at any point of its cycle, for a part of a lease."""
        pid = self.random.choice(list(self.local))
        self.nursery("stop", pid)
        time.sleep(self.random.uniform(0.1, 1.0) * self.leases["quick"])
        self.nursery("cont", pid)
        self.wait_for_recovery("short stop", clock.now())

    def cut_off_a_holder(self, latency: float = 0.0) -> None:
        """Cut a remote holder off: its own clock must end its hold before the next is granted."""
        pid = self.catch(["slow"], list(self.remote))["slow"]
        self.ask("answer", "slow", "linger")
        for proxy in self.remote_proxies:
            proxy.latency = latency
        time.sleep(self.leases["slow"] * self.random.uniform(0.5, 0.75))
        self.faults["cut off"] += 1
        cut = clock.now()
        for proxy in self.remote_proxies:
            proxy.black_hole()
        self.recoveries["cut off"].append(("slow", self.first_hold("slow", cut, [pid]) - cut))
        until = cut + PATIENCE
        while not self.ask("has_expired", pid):
            assert clock.now() < until, "the hold of the worker that was cut off stays valid"
            time.sleep(POLL)
        for proxy in self.remote_proxies:
            proxy.latency = 0
            proxy.heal()
        self.nursery("kill", pid)  # its replacement uses the other API
        self.replace(pid)

    def cut_off_a_distant_holder(self) -> None:
        """Cut off a holder whose last renewals are answered late, though within their budget.

        A client that counted the lease from the replies would consider its hold valid for too long.
        """
        self.cut_off_a_holder(self.leases["slow"] / 16)

    # -- faults of connections -----------------------------------------------------------------

    def reset_connections(self) -> None:
        for proxy in self.local_proxies:
            proxy.reset()
        self.wait_for_recovery("reset", clock.now())

    # -- all of it -----------------------------------------------------------------------------

    def inject(self, schedule: dict[str, int]) -> None:
        """Inject each fault as often as the schedule has it, in random order."""
        faults: list[Callable[[], None]] = [
            getattr(self, name) for name, times in schedule.items() for _ in range(times)
        ]
        self.random.shuffle(faults)
        for fault in faults:
            print(f"{clock.now():.3f} {fault.__name__}")  # shown beside a failure
            fault()
            self.settle()


class ServerStorm(Storm):
    """A storm on a single server: the server restarts and freezes, and its replies are lost."""

    def __init__(self, server: Any, seed: int) -> None:
        super().__init__(seed)
        self.server = server

    def ports(self) -> list[int]:
        return [self.server.port]

    def restart_with_data(self) -> None:
        self.server.restart(keep_data=True)
        self.wait_for_recovery("restart", clock.now())

    def freeze_shortly(self) -> None:
        self.freeze(0.3 * self.leases["quick"], "short freeze")

    def freeze_for_long(self) -> None:
        self.freeze(1.2 * self.leases["slow"], "long freeze")

    def freeze(self, seconds: float, kind: str) -> None:
        self.server.pause()
        time.sleep(seconds)
        self.server.resume()
        self.wait_for_recovery(kind, clock.now())

    def requests(self) -> list[bytes]:
        """Return a substring of each kind of request whose reply may be lost."""
        raise NotImplementedError

    def lose_replies(self) -> None:
        match = self.random.choice(self.requests())
        then = self.random.choice(["reset", "silence"])
        (proxy,) = self.local_proxies
        before = proxy.lost_replies
        proxy.lose_replies(3, match=match, then=then)  # type: ignore[arg-type]
        until = clock.now() + 0.5
        while proxy.lost_replies - before < 3 and clock.now() < until:
            time.sleep(POLL)
        proxy.lose_replies(0)
        proxy.heal()
        self.faults["lost replies"] += proxy.lost_replies - before
        self.wait_for_recovery("loss of replies", clock.now())
