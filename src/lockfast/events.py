"""Events of a client's locks, as values that listeners receive (`client.on_event`).

Each hold emits `Acquired` and then exactly one of `Released`, `Detached` and `Lost`; each wait in a
queue emits `WaitBegan` and then exactly one `WaitEnded`. A listener that counts the first up and
the second down knows the number of holds and of waiters. Re-entry emits nothing, since nothing
happens at the store. Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events. ``store`` is the kind of the store, as in `Capabilities.store`."""

    store: str


@dataclass(frozen=True, slots=True)
class NameEvent(Event):
    """Base of events about one name. ``template``: the expression that the name was made of
    (``@client.locked("ACCOUNT:{user.id}")``), or empty. Templates are few, names are unbounded."""

    name: str
    template: str


@dataclass(frozen=True, slots=True)
class WaitBegan(NameEvent):
    """The name was taken: the claim waits in the queue."""


@dataclass(frozen=True, slots=True)
class WaitEnded(NameEvent):
    """The claim has left the queue, whatever the outcome."""

    waited: float


@dataclass(frozen=True, slots=True)
class Acquired(NameEvent):
    """A hold began, ``waited`` seconds after it was requested."""

    fence: int
    waited: float


@dataclass(frozen=True, slots=True)
class TimedOut(NameEvent):
    """The name was not acquired within the time-out."""

    waited: float


@dataclass(frozen=True, slots=True)
class Refused(NameEvent):
    """The name was taken, and the caller did not want to wait."""

    waited: float


@dataclass(frozen=True, slots=True)
class Failed(NameEvent):
    """The acquisition was cancelled, interrupted or refused by the store. ``error`` is the name of
    the exception's class."""

    waited: float
    error: str


@dataclass(frozen=True, slots=True)
class Released(NameEvent):
    """A hold was released after ``lasted`` seconds (by its lease, if the store did not answer)."""

    fence: int
    lasted: float


@dataclass(frozen=True, slots=True)
class Detached(NameEvent):
    """The client gave up the hold without releasing it; another process may take it over."""

    fence: int
    lasted: float


@dataclass(frozen=True, slots=True)
class Lost(NameEvent):
    """A hold ended before it was released. ``cause`` describes how that is known."""

    fence: int
    lasted: float
    cause: str


@dataclass(frozen=True, slots=True)
class RenewFailed(Event):
    """The keeper's renewal of ``count`` holds and waiters was not answered; it will be retried."""

    count: int
    error: str
