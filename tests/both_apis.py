"""Both both_apis behind one way to call them, for the tests of a store.

`Threads` and `Tasks` take the same functions: ``agent.do(lambda client: client.inspect("a"))``
blocks until it is done, in this thread or in a task of a loop that runs in a thread of its own.
`fixtures` are what a store's tests make them with.
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

PATIENCE = 15.0  # for what must come; nothing is measured by it
Call = Callable[[Any], Any]


class Threads:
    """A blocking client."""

    api = "blocking"

    def __init__(self, where: Any, **terms: Any) -> None:
        self.client = lockfast.connect(where, **terms)

    def do(self, call: Call) -> Any:
        return call(self.client)

    def later(self, call: Call) -> Future[Any]:
        """In a thread of its own."""
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
    """An asyncio client, and the loop that it lives in."""

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
        """In a task of its own."""

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
    """For a store's conftest: ``agents, agent, colour, name = fixtures()``. What makes an agent of
    a colour may be the store's own."""

    @pytest.fixture
    def agents() -> Iterator[Callable[..., Agent]]:
        """Make a client of a colour; closed with the test."""
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
        """Make a client of the test's colour."""
        return lambda where, **terms: agents(api, where, **terms)

    @pytest.fixture(params=list(APIS))
    def api(request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def name() -> str:
        """A name that no other test uses: most of them share one server."""
        return f"name-{uuid.uuid4().hex[:12]}"

    return agents, agent, api, name


def until(so: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Wait until it is so; what it was then."""
    ends = time.monotonic() + patience
    while not (answer := so()):
        assert time.monotonic() < ends, "it never came to that"
        time.sleep(0.005)
    return answer


class took:
    """How long the block took, in seconds."""

    def __enter__(self) -> took:
        self.began = time.monotonic()
        return self

    def __exit__(self, *raised: object) -> None:
        self.seconds = time.monotonic() - self.began
