"""Where the master is: an address that asks Sentinel before every new connection.

The rules:

1. Sentinels are asked one after the other, each for a share of what is left of the budget. One that
   does not answer goes to the back, and those that it tells of are remembered.
2. What a sentinel says is a rumour until the server there says of itself that it is the master. If
   it does not, the next sentinel is asked: a sentinel that was cut off tells of the past.
3. Of two answers that hold the one with the higher epoch counts: after a partition there may be two
   servers that call themselves master, each known to a sentinel. An answer that is older than what
   we know comes last, not never: sentinels that were set up anew count from zero.
4. When no sentinel can be asked, the last known master is, so that whoever holds something goes on.
5. When nobody was found, nobody asks again for a moment, however many threads wait: Sentinel has
   enough to do then.
6. When the master is another one, `generation` grows: links that lead to the old one are not used
   any more. It may come back from a pause and still call itself master for a while. Who hears bells
   there is told, for it would hear no more of them.

The search is a generator that says whom to ask what, so that both colours follow the same rules.
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
SHARE = 1 / 3  # of what is left of the budget, for one sentinel
PAUSE = 0.1  # between the beginnings of two searches, after one that found nobody
# For a search, which is two connections, whatever the budget: with a short lease that is shorter
# than connecting takes on a busy machine.
LEAST = 0.3
FRESH = 0.5  # so long what a sentinel said is remembered, by who had no time left to go there
MOST_SENTINELS = 32  # that are remembered

Place = tuple[str, int]
Commands = tuple[tuple[str, ...], ...]


class Step(NamedTuple):
    """Connect there, say this, and hand back what is answered, or why there is no answer. A
    connection to a master is handed back too."""

    address: Address
    commands: Commands
    budget: float
    keep: bool


class Answer(NamedTuple):
    replies: Sequence[Any]
    connection: Any


class News(NamedTuple):
    """What a sentinel knows of the master."""

    endpoint: Place
    epoch: int
    replicas: int


Search = Generator[Step, Answer | BackendError, tuple[Any, int]]


class SentinelAddress:
    """The master of a service. ``sentinels`` are the first ones to ask; those who are learnt of are
    reached with the words of the first, and another host and port."""

    # As long as a failover may take before Sentinel itself begins anew, by default.
    patience = 180.0
    least = LEAST

    def __init__(
        self, kind: type, said: dict[str, Any], sentinels: Sequence[Address], service: str
    ) -> None:
        self._kind, self.said, self._service = kind, said, service
        self._sentinels = list(sentinels)
        self._mutex = threading.Lock()
        self._master: Place | None = None
        self._epoch = -1
        self._failure: BackendError | None = None
        self._rest_until = 0.0
        self._rumour: tuple[News, float] | None = None
        self.generation = 0
        self.on_move: Callable[[], None] = lambda: None
        self.replicas = 0  # how many Sentinel knows of, also if they are down
        db = f"/{said['db']}" if said.get("db") else ""
        names = ", ".join(sentinel.endpoint for sentinel in sentinels)
        self.where = f"redis master {service}{db} (sentinels {names})"
        self._ask = (
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service),
            ("SENTINEL", "MASTER", service),
            ("SENTINEL", "SENTINELS", service),
        )

    @property
    def service(self) -> str:
        return self._service

    @property
    def sentinels(self) -> list[Address]:
        """Those that are known now."""
        return list(self._sentinels)

    def check(self) -> None:
        """Refuse now what redis-py would refuse when it connects."""
        self._at(("localhost", 0)).check()
        for sentinel in self._sentinels:
            sentinel.check()

    def failed(self, error: BaseException) -> BackendError:
        return Unreachable(f"{self.where} did not answer in time while connecting")

    def after_fork_in_child(self) -> None:
        """A thread that is not here may have been in the middle of it."""
        self._mutex = threading.Lock()

    # ---- both colours --------------------------------------------------------------------------

    def connect(self, budget: float) -> tuple[Any, int]:
        search = self._search(budget)
        answer: Answer | BackendError | None = None
        while True:
            try:
                step = next(search) if answer is None else search.send(answer)
            except StopIteration as found:
                connection, generation = found.value
                return connection, generation
            answer = _asked(step)

    async def connect_task(self, budget: float) -> tuple[Any, int]:
        search = self._search(budget)
        answer: Answer | BackendError | None = None
        while True:
            try:
                step = next(search) if answer is None else search.send(answer)
            except StopIteration as found:
                connection, generation = found.value
                return connection, generation
            answer = await _asked_task(step)

    # ---- the search ----------------------------------------------------------------------------

    def _search(self, budget: float) -> Search:
        self._refuse_while_resting()
        until = clock.now() + max(budget, LEAST)
        failures: list[BackendError] = []
        old: list[Place] = []
        tried: set[Place] = set()
        rumour, self._rumour = self._rumour, None
        if rumour is not None and clock.now() < rumour[1]:
            tried.add(rumour[0].endpoint)
            connection = yield from self._try(rumour[0].endpoint, until, failures)
            if connection is not None:
                return connection, self._adopt(rumour[0], connection)
        for sentinel in list(self._sentinels):
            rest = until - clock.now()
            if rest <= 0:
                break
            answer = yield Step(sentinel, self._ask, rest * SHARE, False)
            news = self._understood(sentinel, answer)
            if isinstance(news, BackendError):
                failures.append(news)
                self._to_the_back(sentinel)
            elif news.epoch < self._epoch:
                old.append(news.endpoint)
            elif news.endpoint not in tried:
                tried.add(news.endpoint)
                self._rumour = (news, clock.now() + FRESH)
                connection = yield from self._try(news.endpoint, until, failures)
                if connection is not None:
                    return connection, self._adopt(news, connection)
        for endpoint in ([] if self._master is None else [self._master]) + old:
            if endpoint not in tried:
                tried.add(endpoint)
                connection = yield from self._try(endpoint, until, failures)
                if connection is not None:
                    return connection, self._adopt(
                        News(endpoint, self._epoch, self.replicas), connection
                    )
        raise self._not_found(failures)

    def _try(
        self, endpoint: Place, until: float, failures: list[BackendError]
    ) -> Generator[Step, Answer | BackendError, Any]:
        """Rule 2: is it the master? The connection, or None."""
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

    def _understood(self, sentinel: Address, answer: Answer | BackendError) -> News | BackendError:
        if isinstance(answer, BackendError):
            return answer
        try:
            endpoint, facts, others = answer.replies
            known = {_text(key): _text(value) for key, value in _pairs(facts)}
            news = News(
                (_text(endpoint[0]), int(endpoint[1])),
                int(known["config-epoch"]),
                int(known["num-slaves"]),
            )
            for other in others:
                one = {_text(key): _text(value) for key, value in _pairs(other)}
                self._learn(sentinel, one["ip"], int(one["port"]))
            return news
        except (TypeError, ValueError, KeyError, IndexError):
            return Unreachable(f"{sentinel.where} knows no master {self._service!r}")

    def _learn(self, teller: Address, host: str, port: int) -> None:
        with self._mutex:
            known = {sentinel.endpoint for sentinel in self._sentinels}
            other = teller.moved_to(host, port)
            if other.endpoint not in known and len(known) < MOST_SENTINELS:
                self._sentinels = [*self._sentinels, other]

    def _to_the_back(self, sentinel: Address) -> None:
        with self._mutex:
            others = [other for other in self._sentinels if other is not sentinel]
            self._sentinels = [*others, sentinel]

    def _adopt(self, news: News, connection: Any) -> int:
        """It is the master. Rule 6."""
        with self._mutex:
            self._failure = self._rumour = None
            if news.epoch < self._epoch:  # another thread has found a newer one meanwhile
                _close(connection)
                raise Unreachable(f"{self.where} is another server since just now")
            moved = self._master not in (None, news.endpoint)
            self.generation += moved
            generation = self.generation
            self._master, self._epoch, self.replicas = news
        if moved:
            self.on_move()
        return generation

    def _refuse_while_resting(self) -> None:
        """Rule 5. Who comes first after the pause has its turn, and the others go on resting."""
        with self._mutex:
            now = clock.now()
            if self._failure is not None and now < self._rest_until:
                raise self._failure
            self._rest_until = now + PAUSE

    def _not_found(self, failures: Sequence[BackendError]) -> BackendError:
        why = "; ".join(dict.fromkeys(str(failure) for failure in failures)) or "out of time"
        lasting = bool(failures) and not any(failure.transient for failure in failures)
        failure = Unreachable(f"{self.where} was not found: {why}", transient=not lasting)
        with self._mutex:
            self._failure = failure
        return failure

    def _at(self, endpoint: Place) -> Address:
        return Address(self._kind, {**self.said, "host": endpoint[0], "port": endpoint[1]})


def _asked(step: Step) -> Answer | BackendError:
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


async def _asked_task(step: Step) -> Answer | BackendError:
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
    """Of either colour."""
    getattr(connection, "_close", connection.disconnect)()


def _pairs(facts: Any) -> list[tuple[Any, Any]]:
    """A map of RESP3, or a flat list of RESP2."""
    if isinstance(facts, Mapping):
        return list(facts.items())
    return list(zip(facts[::2], facts[1::2], strict=True))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
