"""What a program begins with, blocking: `connect`, or the default client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

from lockfast.api.client import CONNECT_KEYWORDS, DEFAULT_LEASE, DEFAULT_NAMESPACE
from lockfast.decorators import F, Kind, OnBusy, locked_by
from lockfast.default import DefaultClient
from lockfast.inputs import Seconds, refuse_foreign
from lockfast.keys import Key
from lockfast.stores import open_store
from lockfast.sync.client import Client
from lockfast.sync.lock import Lock


def connect(
    url: object = None,
    *,
    lease: Seconds = DEFAULT_LEASE,
    namespace: str = DEFAULT_NAMESPACE,
    warn_after: Seconds | None = None,
    replicas: int | str | None = None,
    **foreign: Never,
) -> Client:
    """A client of the store that the URL names (``sqlite:///path``, ``redis://…``), or that a
    client of redis-py or kazoo, an engine of SQLAlchemy, or a function that makes connections to a
    database leads to. No argument is ``$LOCKFAST_URL``, or else the embedded SQLite store of this
    user on this host. ``lease`` and ``warn_after`` are those of its locks, unless one is told
    otherwise. ``replicas``, a number, ``"majority"`` or ``"all"``, is for Redis: so many must
    acknowledge a claim, or it is undone and `NotReplicated` is raised."""
    refuse_foreign("connect()", foreign, CONNECT_KEYWORDS)
    store = open_store(url, replicas)
    return Client.on(store, lease=lease, namespace=namespace, warn_after=warn_after)


default_client = DefaultClient(lambda: connect())


def lock(name: str, **terms: Any) -> Lock:
    """A lock on the default client; the keywords are those of `Client.lock`."""
    return default_client().lock(name, **terms)


def locked(
    key: Key,
    *,
    prefix: str | None = None,
    on_busy: OnBusy = "raise",
    kind: Kind = "lock",
    semaphore: int | None = None,
    **terms: Any,
) -> Callable[[F], F]:
    """`Client.locked` on the default client, which is made at the first call, not at import."""
    return locked_by(
        default_client,
        key,
        prefix=prefix,
        on_busy=on_busy,
        kind=kind,
        semaphore=semaphore,
        terms=terms,
    )
