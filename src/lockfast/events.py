"""What happens to a client's locks, as values: given to those who listen (`client.on_event`).

Each hold gives `Acquired` and then exactly one of `Released`, `Detached` and `Lost`; each wait in a
queue gives `WaitBegan` and then exactly one `WaitEnded`. So whoever counts the first up and the
second down knows what is held and who waits. Re-entry gives nothing: nothing happens at the store.
Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened. ``store`` is the kind of the store, as `Capabilities.store` says it."""

    store: str


@dataclass(frozen=True, slots=True)
class NameEvent(Event):
    """Something happened to a name. ``template`` is the expression that the name was made of, where
    there is one (``@client.locked("ACCOUNT:{user.id}")``), or else empty: there are few of them,
    while names may be without end."""

    name: str
    template: str


@dataclass(frozen=True, slots=True)
class WaitBegan(NameEvent):
    """It was not free: the claim stands in the queue."""


@dataclass(frozen=True, slots=True)
class WaitEnded(NameEvent):
    """The claim stands there no more, whatever it led to."""

    waited: float


@dataclass(frozen=True, slots=True)
class Acquired(NameEvent):
    """A hold began, ``waited`` seconds after it was asked for."""

    fence: int
    waited: float


@dataclass(frozen=True, slots=True)
class TimedOut(NameEvent):
    """Not acquired: the time was over before it was our turn."""

    waited: float


@dataclass(frozen=True, slots=True)
class Refused(NameEvent):
    """Not acquired: it was asked for once, with no time to wait, and was taken."""

    waited: float


@dataclass(frozen=True, slots=True)
class Failed(NameEvent):
    """Not acquired: cancelled, interrupted, or refused by the store. ``error`` is the name of the
    exception's class."""

    waited: float
    error: str


@dataclass(frozen=True, slots=True)
class Released(NameEvent):
    """A hold was given back after ``lasted`` seconds. (If the store did not answer that, its lease
    ends it there.)"""

    fence: int
    lasted: float


@dataclass(frozen=True, slots=True)
class Detached(NameEvent):
    """This client keeps the hold no more; another process may take it over."""

    fence: int
    lasted: float


@dataclass(frozen=True, slots=True)
class Lost(NameEvent):
    """A hold ended without us. ``cause`` says how that is known."""

    fence: int
    lasted: float
    cause: str


@dataclass(frozen=True, slots=True)
class RenewFailed(Event):
    """The keeper's request for ``count`` holds and places was not answered; it will ask again."""

    count: int
    error: str
