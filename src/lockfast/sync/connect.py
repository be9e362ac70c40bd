"""Entry points of the sync API: `connect`, and functions that use the default client."""

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
    url: object = None, *, lease: Seconds = DEFAULT_LEASE, namespace: str = DEFAULT_NAMESPACE,
    warn_after: Seconds | None = None, replicas: int | str | None = None, **foreign: Never,
) -> Client:  # fmt: skip
    """Return a client for a store.

    - ``url``: a URL (``sqlite:///path``, ``redis://…``), a redis-py or kazoo client, a SQLAlchemy
      engine, or a function that returns a new database connection. Default: ``$LOCKFAST_URL``, or
      else this user's SQLite store on this host.
    - ``lease``, ``warn_after``: defaults for the locks of this client; see `Client.lock`.
    - ``namespace``: clients exclude each other only within the same namespace.
    - ``replicas`` (Redis): how many replicas must acknowledge a claim, as a number, ``"majority"``
      or ``"all"``; otherwise the claim is undone and `NotReplicated` is raised.

    Raises `ConfigurationError` for a bad URL or option. The first operation contacts the store.
    """
    refuse_foreign("connect()", foreign, CONNECT_KEYWORDS)
    store = open_store(url, replicas)
    return Client.on(store, lease=lease, namespace=namespace, warn_after=warn_after)


default_client = DefaultClient(lambda: connect())


def lock(name: str, **terms: Any) -> Lock:
    """Return a lock on the default client, with the options of `Client.lock`."""
    return default_client().lock(name, **terms)


def locked(
    key: Key, *, prefix: str | None = None, on_busy: OnBusy = "raise", kind: Kind = "lock",
    semaphore: int | None = None, **terms: Any,
) -> Callable[[F], F]:  # fmt: skip
    """Return `Client.locked` of the default client, which connects at the first call."""
    return locked_by(
        default_client, key, prefix=prefix, on_busy=on_busy, kind=kind, semaphore=semaphore,
        terms=terms,
    )  # fmt: skip
