"""What a case is, and how it is run. The cases themselves stand in the modules beside."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.testing.conformance.worlds import WORLDS, World

Body = Callable[[World], Coroutine[Any, Any, None]]
E = TypeVar("E", bound=BaseException)

CASES: list[Case] = []


@dataclass(frozen=True, slots=True)
class Case:
    """One behaviour. ``only`` is a face, ``processes`` asks for a store that reaches so far,
    ``tidy`` False says that the case leaves something behind on purpose."""

    name: str
    body: Body
    only: str
    processes: bool
    tidy: bool


def case(*, only: str = "", processes: bool = False, tidy: bool = True) -> Callable[[Body], Body]:
    """Add it to `CASES`."""

    def add(body: Body) -> Body:
        name = body.__name__.removeprefix("test_")
        assert name not in {known.name for known in CASES}, f"two cases are called {name}"
        CASES.append(Case(name, body, only, processes, tidy))
        return body

    return add


def cases_for(across: str) -> list[tuple[Case, str]]:
    """What a store that reaches so far (as its capabilities say) must pass: (case, face)."""
    return [
        (case, face)
        for case in CASES
        for face in WORLDS
        if case.only in ("", face) and not (case.processes and across == "process")
    ]


def run_case(case: Case, face: str, url: str) -> None:
    """Run it on a fresh store."""
    WORLDS[face](url).run(case.body, tidy=case.tidy)


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
