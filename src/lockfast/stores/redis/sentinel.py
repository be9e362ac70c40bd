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

The search is a generator, so that both APIs follow the same rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import redis

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.errors import Unreachable
from lockfast.stores.redis.redis_py import Address, close_connection
from lockfast.stores.steps import Steps, perform, perform_soon

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


class Report(NamedTuple):
    """A sentinel's knowledge of the master."""

    endpoint: Endpoint
    epoch: int
    replicas: int


# `Address.connect` or `Address.connect_task`: whichever the API uses.
Connect = Callable[[Address, float], Any]


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

    def connect(self, budget: float) -> tuple[Any, int]:
        return perform(self._search(Address.connect, budget), _call)

    async def connect_task(self, budget: float) -> tuple[Any, int]:
        return await perform_soon(self._search(Address.connect_task, budget), _call)

    # ---- the search ----------------------------------------------------------------------------

    def _search(self, connect: Connect, budget: float) -> Steps[tuple[Any, int]]:
        self._refuse_during_pause()
        until = clock.now() + max(budget, LEAST)
        failures: list[BackendError] = []
        tried: set[Endpoint] = set()

        def attempt(report: Report) -> Steps[tuple[Any, int] | None]:
            """Confirm that a server is the master (rule 2): return the connection, or None."""
            tried.add(report.endpoint)
            address = self._at(report.endpoint)
            limit = max(until - clock.now(), 0.001) * (1 - SHARE)
            try:
                connection, (role,) = yield from _ask(connect, address, (("ROLE",),), limit)
            except BackendError as error:
                failures.append(error)
                return None
            if isinstance(role, list) and role and role[0] == b"master":
                return connection, self._adopt(report, connection)
            close_connection(connection)
            failures.append(Unreachable(f"{address.where} is not the master of {self._service}"))
            return None

        unconfirmed, self._unconfirmed = self._unconfirmed, None
        if unconfirmed is not None and clock.now() < unconfirmed[1]:
            found = yield from attempt(unconfirmed[0])
            if found is not None:
                return found
        last = [] if self._master is None else [Report(self._master, self._epoch, self.replicas)]
        for sentinel in list(self._sentinels):
            rest = until - clock.now()
            if rest <= 0:
                break
            try:
                report = yield from self._reported(connect, sentinel, rest * SHARE)
            except BackendError as error:
                failures.append(error)
                self._to_the_back(sentinel)
                continue
            if report.epoch < self._epoch:
                last.append(report._replace(epoch=self._epoch, replicas=self.replicas))
            elif report.endpoint not in tried:
                self._unconfirmed = (report, clock.now() + FRESH)
                if found := (yield from attempt(report)):
                    return found
        for report in last:
            if report.endpoint not in tried and (found := (yield from attempt(report))):
                return found
        raise self._not_found(failures)

    def _reported(self, connect: Connect, sentinel: Address, budget: float) -> Steps[Report]:
        connection, replies = yield from _ask(connect, sentinel, self._queries, budget)
        close_connection(connection)
        try:
            endpoint, facts, others = replies
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
            raise Unreachable(f"{sentinel.where} has no master named {self._service!r}") from None

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
                close_connection(connection)
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


def _call(request: tuple[Any, ...]) -> Any:
    return request[0](*request[1:])


def _ask(
    connect: Connect, address: Address, commands: Commands, budget: float
) -> Steps[tuple[Any, list[Any]]]:
    """Connect and send commands: the connection, and the replies."""
    connection, _ = yield connect, address, budget
    try:
        for command in commands:
            yield connection.send_command, *command
        replies = []
        for _ in commands:
            replies.append((yield (connection.read_response,)))
        return connection, replies
    except (redis.exceptions.RedisError, OSError, UnicodeError) as error:
        close_connection(connection)
        raise address.failed(error) from error
    except BaseException:
        close_connection(connection)
        raise


def _pairs(facts: Any) -> list[tuple[Any, Any]]:
    """The pairs of a RESP3 map, or of a flat RESP2 list."""
    if isinstance(facts, Mapping):
        return list(facts.items())
    return list(zip(facts[::2], facts[1::2], strict=True))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
