"""The address of a master that Sentinel knows; Sentinel is queried before every new connection.

The rules:

1. Sentinels are queried one after the other, each with a share of the remaining budget. One that
   does not reply goes to the back of the list; other sentinels that it reports are added.
2. A sentinel's report is unconfirmed until the server itself reports the role of master. If it does
   not, the next sentinel is queried: one that was cut off reports the past.
3. Of two confirmed reports the one with the higher epoch counts: after a partition two servers may
   have the role of master, each known to a sentinel. A report older than what we know is tried
   last, not discarded: sentinels that were set up anew count epochs from zero.
4. If no sentinel replies, the last known master is tried, so that holders can go on renewing.
5. A search that found no master is followed by a pause, for all threads: Sentinel is busy then.
6. When the master changes, `generation` grows, and connections to the previous master are not used
   any more: it may come back from a pause and have the role of master for a while. Waiters that
   listen there are notified, since they would receive no more wake-ups.

The search is a generator that yields queries, so that both APIs follow the same rules.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import redis

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.connections import Address
from lockfast.stores.redis.errors import Unreachable

PORT = 26379
SHARE = 1 / 3  # of the remaining budget, for one sentinel
PAUSE = 0.1  # between the starts of two searches, after one that found no master
# The minimum for a search, which opens two connections: the budget of a short lease is shorter than
# connecting takes on a busy machine.
LEAST = 0.3
FRESH = 0.5  # how long a report is kept if there was no time left to confirm it
MOST_SENTINELS = 32  # in the list

Endpoint = tuple[str, int]
Commands = tuple[tuple[str, ...], ...]


class Step(NamedTuple):
    """A query: connect, send the commands, and return the replies or the error; with ``keep`` also
    the connection."""

    address: Address
    commands: Commands
    budget: float
    keep: bool


class Answer(NamedTuple):
    replies: Sequence[Any]
    connection: Any


class Report(NamedTuple):
    """A sentinel's knowledge of the master."""

    endpoint: Endpoint
    epoch: int
    replicas: int


Search = Generator[Step, Answer | BackendError, tuple[Any, int]]


class SentinelAddress:
    """The master of a service. ``sentinels`` are the first ones to query; a sentinel that another
    one reports is reached with the options of that one, and another host and port."""

    # The default time after which Sentinel itself starts a failover anew.
    patience = 180.0
    least = LEAST

    def __init__(
        self, kind: type, options: dict[str, Any], sentinels: Sequence[Address], service: str
    ) -> None:
        self._kind, self.options, self._service = kind, options, service
        self._sentinels = list(sentinels)
        self._mutex = threading.Lock()
        self._master: Endpoint | None = None
        self._epoch = -1
        self._failure: BackendError | None = None
        self._pause_until = 0.0
        self._unconfirmed: tuple[Report, float] | None = None
        self.generation = 0
        self.on_move: Callable[[], None] = lambda: None
        self.replicas = 0  # how many Sentinel knows, including those that are down
        db = f"/{options['db']}" if options.get("db") else ""
        names = ", ".join(sentinel.endpoint for sentinel in sentinels)
        self.where = f"redis master {service}{db} (sentinels {names})"
        self._queries = (
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service),
            ("SENTINEL", "MASTER", service),
            ("SENTINEL", "SENTINELS", service),
        )

    @property
    def service(self) -> str:
        return self._service

    @property
    def sentinels(self) -> list[Address]:
        """The sentinels known now."""
        return list(self._sentinels)

    def check(self) -> None:
        """Reject now the options that redis-py would reject when it connects."""
        self._at(("localhost", 0)).check()
        for sentinel in self._sentinels:
            sentinel.check()

    def failed(self, error: BaseException) -> BackendError:
        return Unreachable(f"{self.where} did not answer in time while connecting")

    def after_fork_in_child(self) -> None:
        """Replace the mutex: a thread of the parent may have held it."""
        self._mutex = threading.Lock()

    # ---- both APIs -----------------------------------------------------------------------------

    def connect(self, budget: float) -> tuple[Any, int]:
        search = self._search(budget)
        answer: Answer | BackendError | None = None
        while True:
            try:
                step = next(search) if answer is None else search.send(answer)
            except StopIteration as found:
                connection, generation = found.value
                return connection, generation
            answer = _query(step)

    async def connect_task(self, budget: float) -> tuple[Any, int]:
        search = self._search(budget)
        answer: Answer | BackendError | None = None
        while True:
            try:
                step = next(search) if answer is None else search.send(answer)
            except StopIteration as found:
                connection, generation = found.value
                return connection, generation
            answer = await _query_task(step)

    # ---- the search ----------------------------------------------------------------------------

    def _search(self, budget: float) -> Search:
        self._refuse_during_pause()
        until = clock.now() + max(budget, LEAST)
        failures: list[BackendError] = []
        old: list[Endpoint] = []
        tried: set[Endpoint] = set()
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        if unconfirmed is not None and clock.now() < unconfirmed[1]:
            tried.add(unconfirmed[0].endpoint)
            connection = yield from self._try(unconfirmed[0].endpoint, until, failures)
            if connection is not None:
                return connection, self._adopt(unconfirmed[0], connection)
        for sentinel in list(self._sentinels):
            rest = until - clock.now()
            if rest <= 0:
                break
            answer = yield Step(sentinel, self._queries, rest * SHARE, False)
            report = self._parsed(sentinel, answer)
            if isinstance(report, BackendError):
                failures.append(report)
                self._to_the_back(sentinel)
            elif report.epoch < self._epoch:
                old.append(report.endpoint)
            elif report.endpoint not in tried:
                tried.add(report.endpoint)
                self._unconfirmed = (report, clock.now() + FRESH)
                connection = yield from self._try(report.endpoint, until, failures)
                if connection is not None:
                    return connection, self._adopt(report, connection)
        for endpoint in ([] if self._master is None else [self._master]) + old:
            if endpoint not in tried:
                tried.add(endpoint)
                connection = yield from self._try(endpoint, until, failures)
                if connection is not None:
                    return connection, self._adopt(
                        Report(endpoint, self._epoch, self.replicas), connection
                    )
        raise self._not_found(failures)

    def _try(
        self, endpoint: Endpoint, until: float, failures: list[BackendError]
    ) -> Generator[Step, Answer | BackendError, Any]:
        """Confirm that a server is the master (rule 2): return the connection, or None."""
        address = self._at(endpoint)
        rest = max(until - clock.now(), 0.001)
        answer = yield Step(address, (("ROLE",),), rest * (1 - SHARE), True)
        if isinstance(answer, BackendError):
            failures.append(answer)
            return None
        role = answer.replies[0]
        if isinstance(role, list) and role and role[0] == b"master":
            return answer.connection
        _close(answer.connection)
        failures.append(Unreachable(f"{address.where} is not the master of {self._service}"))
        return None

    def _parsed(self, sentinel: Address, answer: Answer | BackendError) -> Report | BackendError:
        if isinstance(answer, BackendError):
            return answer
        try:
            endpoint, facts, others = answer.replies
            known = {_text(key): _text(value) for key, value in _pairs(facts)}
            report = Report(
                (_text(endpoint[0]), int(endpoint[1])),
                int(known["config-epoch"]),
                int(known["num-slaves"]),
            )
            for other in others:
                one = {_text(key): _text(value) for key, value in _pairs(other)}
                self._learn(sentinel, one["ip"], int(one["port"]))
            return report
        except (TypeError, ValueError, KeyError, IndexError):
            return Unreachable(f"{sentinel.where} has no master named {self._service!r}")

    def _learn(self, reporter: Address, host: str, port: int) -> None:
        with self._mutex:
            known = {sentinel.endpoint for sentinel in self._sentinels}
            other = reporter.moved_to(host, port)
            if other.endpoint not in known and len(known) < MOST_SENTINELS:
                self._sentinels = [*self._sentinels, other]

    def _to_the_back(self, sentinel: Address) -> None:
        with self._mutex:
            others = [other for other in self._sentinels if other is not sentinel]
            self._sentinels = [*others, sentinel]

    def _adopt(self, report: Report, connection: Any) -> int:
        """Make a confirmed server our master (rule 6); return its generation."""
        with self._mutex:
            self._failure = self._unconfirmed = None
            if report.epoch < self._epoch:  # another thread has found a newer one in the meantime
                _close(connection)
                raise Unreachable(f"{self.where} has just moved to another server")
            moved = self._master not in (None, report.endpoint)
            self.generation += moved
            generation = self.generation
            self._master, self._epoch, self.replicas = report
        if moved:
            self.on_move()
        return generation

    def _refuse_during_pause(self) -> None:
        """Apply rule 5. The first caller after the pause searches; for others the pause goes on."""
        with self._mutex:
            now = clock.now()
            if self._failure is not None and now < self._pause_until:
                raise self._failure
            self._pause_until = now + PAUSE

    def _not_found(self, failures: Sequence[BackendError]) -> BackendError:
        why = (
            "; ".join(dict.fromkeys(str(failure) for failure in failures)) or "the budget was over"
        )
        lasting = bool(failures) and not any(failure.transient for failure in failures)
        failure = Unreachable(f"{self.where} was not found: {why}", transient=not lasting)
        with self._mutex:
            self._failure = failure
        return failure

    def _at(self, endpoint: Endpoint) -> Address:
        return Address(self._kind, {**self.options, "host": endpoint[0], "port": endpoint[1]})


def _query(step: Step) -> Answer | BackendError:
    try:
        connection, _ = step.address.connect(step.budget)
    except BackendError as error:
        return error
    try:
        for command in step.commands:
            connection.send_command(*command)
        answer = Answer([connection.read_response() for _ in step.commands], connection)
    except (redis.exceptions.RedisError, OSError, UnicodeError) as error:
        connection.disconnect()
        return step.address.failed(error)
    except BaseException:
        connection.disconnect()
        raise
    if not step.keep:
        connection.disconnect()
    return answer


async def _query_task(step: Step) -> Answer | BackendError:
    until = asyncio.get_running_loop().time() + step.budget
    try:
        connection, _ = await step.address.connect_task(step.budget)
    except BackendError as error:
        return error
    try:
        async with asyncio.timeout_at(until):
            for command in step.commands:
                await connection.send_command(*command)
            answer = Answer([await connection.read_response() for _ in step.commands], connection)
    except (redis.exceptions.RedisError, OSError, UnicodeError) as error:
        connection._close()
        return step.address.failed(error)
    except BaseException:
        connection._close()
        raise
    if not step.keep:
        connection._close()
    return answer


def _close(connection: Any) -> None:
    """Close a redis-py connection of either API."""
    getattr(connection, "_close", connection.disconnect)()


def _pairs(facts: Any) -> list[tuple[Any, Any]]:
    """The pairs of a RESP3 map, or of a flat RESP2 list."""
    if isinstance(facts, Mapping):
        return list(facts.items())
    return list(zip(facts[::2], facts[1::2], strict=True))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
