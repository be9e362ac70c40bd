"""Entry points of the async API: `connect`, and functions that use the default client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Never, Unpack, overload

from lockfast.aio.client import Client
from lockfast.aio.lock import Lock
from lockfast.aio.options import LockedOptions, LockOptions
from lockfast.api.client import (
    CONNECT_KEYWORDS,
    DEFAULT_LEASE,
    DEFAULT_NAMESPACE,
    DefaultClient,
    Where,
)
from lockfast.decorators import F, OnBusy, Skippable, locked_by
from lockfast.inputs import Seconds, refuse_foreign
from lockfast.keys import Key
from lockfast.stores import open_endpoint


def connect(
    url: Where = None,
    *,
    lease: Seconds = DEFAULT_LEASE,
    namespace: str = DEFAULT_NAMESPACE,
    warn_after: Seconds | None = None,
    replicas: int | str | None = None,
    **foreign: Never,
) -> Client:
    """Return a client for a store.

    - ``url``: a URL (``sqlite:///path``, ``redis://…``), a redis-py or kazoo client, a SQLAlchemy
      engine, or a function that returns a new database connection. Default: ``$LOCKFAST_URL``, or
      else this user's SQLite store on this host.
    - ``lease``, ``warn_after``: defaults for the locks of this client; see `LockOptions`.
    - ``namespace``: clients exclude each other only within the same namespace.
    - ``replicas`` (Redis): how many replicas must acknowledge a claim, as a number, ``"majority"``
      or ``"all"``; otherwise the claim is undone and `NotReplicated` is raised.

    Raises `ConfigurationError` for a bad URL or option. The first operation contacts the store.
    """
    refuse_foreign("connect()", foreign, CONNECT_KEYWORDS)
    endpoint = open_endpoint(url, replicas)
    return Client._on(endpoint, lease=lease, namespace=namespace, warn_after=warn_after)


default_client = DefaultClient(lambda: connect())


def lock(name: str, **options: Unpack[LockOptions]) -> Lock:
    """Return a lock on the default client, as `Client.lock` does."""
    return default_client().lock(name, **options)


@overload
def locked(
    key: Key, *, on_busy: Literal["skip"], **options: Unpack[LockedOptions]
) -> Skippable: ...
@overload
def locked(
    key: Key, *, on_busy: Literal["raise"] = "raise", **options: Unpack[LockedOptions]
) -> Callable[[F], F]: ...
def locked(key: Key, *, on_busy: OnBusy = "raise", **options: Unpack[LockedOptions]) -> object:
    """Return `Client.locked` of the default client, which connects at the first call."""
    return locked_by(default_client, key, on_busy, options)
