"""One interface to the sync and the async API, for tests that run on both.

`Threads` and `Tasks` take the same functions: ``agent.do(lambda client: client.inspect("a"))``
blocks until the call is done, in this thread or in a task of a loop that runs in a thread of its
own. `fixtures` returns the pytest fixtures that create them.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import lockfast
from lockfast import aio

PATIENCE = 15.0  # seconds to wait for what must happen; not used to measure anything
Call = Callable[[Any], Any]


class Threads:
    """A client of the sync API."""

    api = "blocking"

    def __init__(self, where: Any, **terms: Any) -> None:
        self.client = lockfast.connect(where, **terms)

    def do(self, call: Call) -> Any:
        return call(self.client)

    def later(self, call: Call) -> Future[Any]:
        """Start the call in a thread of its own."""
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(call(self.client))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    def close(self) -> None:
        self.client.close()


class Tasks:
    """A client of the async API, and its event loop in a thread of its own."""

    api = "asyncio"

    def __init__(self, where: Any, **terms: Any) -> None:
        self.client = aio.connect(where, **terms)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._ready.set()
        await self._over.wait()
        await self.client.close()

    def do(self, call: Call) -> Any:
        return self.later(call).result(PATIENCE)

    def later(self, call: Call) -> Future[Any]:
        """Start the call in a task of its own."""

        async def work() -> Any:
            return await call(self.client)

        return asyncio.run_coroutine_threadsafe(work(), self.loop)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._over.set)
            self._thread.join(PATIENCE)


Agent = Threads | Tasks
APIS: dict[str, type[Threads] | type[Tasks]] = {"blocking": Threads, "asyncio": Tasks}


def _plain(api: str, where: Any, **terms: Any) -> Agent:
    return APIS[api](where, **terms)


def fixtures(make: Callable[..., Agent] = _plain) -> tuple[Any, Any, Any, Any]:
    """Return fixtures for a store's conftest: ``agents, agent, api, name = fixtures()``.

    ``make`` creates an agent of an API, and may be the store's own.
    """

    @pytest.fixture
    def agents() -> Iterator[Callable[..., Agent]]:
        """Create a client of either API, closed after the test."""
        made: list[Agent] = []

        def agents(api: str, where: Any, **terms: Any) -> Agent:
            agent = make(api, where, **terms)
            made.append(agent)
            return agent

        yield agents
        for agent in made:
            agent.close()

    @pytest.fixture
    def agent(api: str, agents: Callable[..., Agent]) -> Callable[..., Agent]:
        """Create a client of the API that the test runs on."""
        return lambda where, **terms: agents(api, where, **terms)

    @pytest.fixture(params=list(APIS))
    def api(request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def name() -> str:
        """A name that no other test uses: most tests share one server."""
        return f"name-{uuid.uuid4().hex[:12]}"

    return agents, agent, api, name


def until(predicate: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Poll until the predicate returns a true value; return that value."""
    ends = time.monotonic() + patience
    while not (value := predicate()):
        assert time.monotonic() < ends, f"still false after {patience} s"
        time.sleep(0.005)
    return value


class took:
    """Measure the duration of a ``with`` block: ``seconds`` by the clock, for lower bounds, and
    ``unstalled`` for upper bounds.

    ``unstalled`` leaves out the time by which a thread that only sleeps was late: on a busy machine
    the tested threads were late by as much.
    """

    TICK = 0.005
    PUNCTUAL = 0.001

    def __enter__(self) -> took:
        self._stalled = 0.0
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        self.began = time.monotonic()
        return self

    def __exit__(self, *raised: object) -> None:
        self.seconds = time.monotonic() - self.began
        self._over.set()
        self._sampler.join(PATIENCE)
        self.unstalled = self.seconds - self._stalled

    def _sample(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            time.sleep(self.TICK)
            late = time.monotonic() - began - self.TICK
            if late > self.PUNCTUAL:
                self._stalled += late
