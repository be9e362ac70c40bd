"""The registry of cases, and the function that runs one. The cases are in the other modules."""

from __future__ import annotations

from collections.abc import Callable, Container, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lab.conformance.worlds import WORLDS, World

Body = Callable[[World], Coroutine[Any, Any, None]]
E = TypeVar("E", bound=BaseException)

CASES: list[Case] = []
# The primitive that all cases of a module need, where a store's capabilities may refuse it.
PRIMITIVE_OF_MODULE = {
    "semaphores": "semaphore", "permits": "permits", "latches": "latch", "barriers": "barrier",
    "once_every": "once_every", "once_every_arguments": "once_every",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One behaviour of a store.

    ``only`` restricts the case to one API ("blocking" or "asyncio"). ``processes`` restricts it to
    stores whose locks reach other processes. ``tidy=False`` permits the case to leave holds behind.
    ``needs`` names a feature that some stores lack (a value of `PRIMITIVE_OF_MODULE`, or "arrival
    order"); the case does not run on those.
    """

    name: str
    body: Body
    only: str
    processes: bool
    tidy: bool
    needs: str


def case(
    *, only: str = "", processes: bool = False, tidy: bool = True, needs: str = ""
) -> Callable[[Body], Body]:
    """Add the decorated function to `CASES`."""

    def add(body: Body) -> Body:
        name = body.__name__.removeprefix("test_")
        assert name not in {known.name for known in CASES}, f"two cases are called {name}"
        primitive = PRIMITIVE_OF_MODULE.get(body.__module__.rpartition(".")[2], "")
        CASES.append(Case(name, body, only, processes, tidy, needs or primitive))
        return body

    return add


def cases_for(across: str, lacks: Container[str] = ()) -> list[tuple[Case, str]]:
    """Return the pairs (case, API) that a store must pass.

    ``across`` is the scope of its locks ("process", "host" or "network"); ``lacks`` are the
    features that it lacks, according to its capabilities.
    """
    return [
        (case, api)
        for case in CASES
        for api in WORLDS
        if case.only in ("", api) and not (case.processes and across == "process")
        if not case.needs or case.needs not in lacks
    ]


def run_case(case: Case, api: str, url: str) -> None:
    """Run the case in one API, on the empty store at ``url``."""
    WORLDS[api](url).run(case.body, tidy=case.tidy)


class Caught(Generic[E]):
    """The error that `raises` caught; set when its block is over."""

    error: E

    def __str__(self) -> str:
        return str(self.error)


@contextmanager
def raises(kind: type[E], *fragments: str) -> Iterator[Caught[E]]:
    """Assert that the block raises ``kind``, and that its message contains every fragment."""
    caught: Caught[E] = Caught()
    try:
        yield caught
    except kind as error:
        caught.error = error
        missing = [fragment for fragment in fragments if fragment not in str(error)]
        assert not missing, f"{missing} not in the message: {error}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")
