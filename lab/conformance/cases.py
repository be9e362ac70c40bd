"""What a case is, and how it is run. The cases themselves stand in the modules beside."""

from __future__ import annotations

from collections.abc import Callable, Container, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lab.conformance.worlds import WORLDS, World

Body = Callable[[World], Coroutine[Any, Any, None]]
E = TypeVar("E", bound=BaseException)

CASES: list[Case] = []
# What all cases of a module are about, where a store may refuse to give it (its capabilities say).
ABOUT = {
    "semaphores": "semaphore", "expiring": "permits", "latches": "latch", "barriers": "barrier",
    "periods": "once_every", "scheduled": "once_every",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One behaviour. ``only`` is a face, ``processes`` asks for a store that reaches so far,
    ``tidy`` False says that the case leaves something behind on purpose, ``needs`` what a store may
    not give (see `ABOUT`, or "arrival order"): then it is not run there."""

    name: str
    body: Body
    only: str
    processes: bool
    tidy: bool
    needs: str


def case(
    *, only: str = "", processes: bool = False, tidy: bool = True, needs: str = ""
) -> Callable[[Body], Body]:
    """Add it to `CASES`."""

    def add(body: Body) -> Body:
        name = body.__name__.removeprefix("test_")
        assert name not in {known.name for known in CASES}, f"two cases are called {name}"
        about = ABOUT.get(body.__module__.rpartition(".")[2], "")
        CASES.append(Case(name, body, only, processes, tidy, needs or about))
        return body

    return add


def cases_for(across: str, lacks: Container[str] = ()) -> list[tuple[Case, str]]:
    """What a store that reaches so far, and gives all but these (as its capabilities say), must
    pass: (case, face)."""
    return [
        (case, api)
        for case in CASES
        for api in WORLDS
        if case.only in ("", api) and not (case.processes and across == "process")
        if not case.needs or case.needs not in lacks
    ]


def run_case(case: Case, api: str, url: str) -> None:
    """Run it on a fresh store."""
    WORLDS[api](url).run(case.body, tidy=case.tidy)


class Caught(Generic[E]):
    """What `raises` caught, when its block is over."""

    error: E

    def __str__(self) -> str:
        return str(self.error)


@contextmanager
def raises(kind: type[E], *words: str) -> Iterator[Caught[E]]:
    """The block must raise this very kind of error, whose message has these words in it."""
    caught: Caught[E] = Caught()
    try:
        yield caught
    except kind as error:
        caught.error = error
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in the message: {error}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")
