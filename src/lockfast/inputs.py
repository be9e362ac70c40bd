"""Validation of user input (names, durations, keywords) at the API, before any I/O.

Other libraries have lost mutual exclusion to each of these: a number rounded to "forever", a name
that two stores spell differently, a keyword of another library that is silently ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

from lockfast.errors import ConfigurationError

Seconds = float | int | timedelta

MAX_NAME_BYTES = 1000
MIN_LEASE = 0.01
MAX_LABEL = 200
MAX_METADATA = 1000
MAX_SECONDS = 366 * 86400.0

# Keywords of other lock libraries, and the keyword that means the same here.
FOREIGN = {
    foreign: ours
    for ours, keywords in {
        "lease": "expire expires ttl px ex lease_time leaseTime auto_release_time lock_timeout",
        "timeout": "blocking_timeout wait_time waitTime wait max_wait acquire_timeout",
        "renew": "auto_renewal auto_renew auto_extend watchdog",
        "owner": "token id",
        "namespace": "key_prefix prefix",
    }.items()
    for foreign in keywords.split()
}


def checked_name(name: object, *, what: str = "a name") -> str:
    """Return the name unchanged: a name is never normalized and never truncated."""
    if not isinstance(name, str):
        hint = ": decode it first" if isinstance(name, bytes | bytearray) else ""
        raise ConfigurationError(f"{what} must be a str, not {type(name).__name__}{hint}")
    if not name:
        raise ConfigurationError(f"{what} must not be empty")
    if "\0" in name:
        raise ConfigurationError(f"{what} must not contain NUL: {name[:80]!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{what} must be valid Unicode, but has a lone surrogate: {name[:80]!r}"
        ) from None
    name = str.__str__(name)  # a str enum equals its value, so both must name the same lock
    if size > MAX_NAME_BYTES:
        raise ConfigurationError(
            f"{what} has {size} bytes, at most {MAX_NAME_BYTES} are allowed: {name[:40]!r}… "
            "(use a digest of it as the name instead)"
        )
    return name


def checked_label(label: object) -> str:
    return _text("label", label)[:MAX_LABEL]


def checked_metadata(metadata: object) -> str:
    """Return the leader's metadata, never truncated: other processes parse it."""
    text = _text("metadata", metadata)
    if len(text.encode()) > MAX_METADATA:
        raise ConfigurationError(
            f"metadata has {len(text.encode())} bytes, at most {MAX_METADATA} are allowed"
        )
    return text


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{what}={value!r} must be a str, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what}={value!r} is not valid Unicode") from None
    return value


def checked_switch(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what}={value!r} must be True or False")
    return value


def checked_owner(owner: object) -> object:
    try:
        hash(owner)
    except TypeError:
        raise ConfigurationError(f"owner={owner!r} must be hashable") from None
    return owner


def checked_namespace(namespace: object) -> str:
    if not isinstance(namespace, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", namespace):
        raise ConfigurationError(
            f"namespace={namespace!r} must be 1 to 64 letters, digits, '.', '_' or '-'"
        )
    return namespace


def checked_lease(lease: object, *, what: str = "lease") -> float:
    """Return the lease in seconds: finite, and at least `MIN_LEASE`."""
    seconds = _number(lease, what)
    if seconds < MIN_LEASE:
        raise ConfigurationError(f"{what}={lease!r} is too short: at least {MIN_LEASE} seconds")
    return seconds


def checked_number(what: str, value: object, most: int) -> int:
    """Return a count: an integer from 1 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what}={value!r} must be an int, not {type(value).__name__}")
    if not 1 <= value <= most:
        raise ConfigurationError(f"{what}={value!r} must be from 1 to {most}")
    return value


def checked_timeout(timeout: object) -> float | None:
    """Return the seconds to wait: 0 tries once, None waits without limit."""
    if timeout is None:
        return None
    return checked_span(timeout, "timeout", "0 tries once, None waits without limit")


def checked_span(span: object, what: str, hint: str) -> float:
    """Return a duration in seconds, zero included."""
    seconds = _number(span, what)
    if seconds < 0:
        raise ConfigurationError(f"{what}={span!r} is negative: {hint}")
    return seconds


def _number(value: object, what: str) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(
            f"{what}={value!r} must be seconds (a number or timedelta), not {type(value).__name__}"
        )
    if value != value or abs(value) > MAX_SECONDS:
        raise ConfigurationError(
            f"{what}={value!r} must be a number of seconds, at most {MAX_SECONDS:.0f} (a year)"
        )
    return float(value)


def refuse_foreign(call: str, foreign: Mapping[str, object], known: Collection[str]) -> None:
    """Raise for an unknown keyword, and suggest the right one."""
    for keyword in foreign:
        if keyword in ("blocking", "block"):
            hint = "use try_acquire() to try once, acquire(timeout=…) to wait"
        elif keyword in FOREIGN and FOREIGN[keyword] in known:
            hint = f"did you mean {FOREIGN[keyword]}=?"
        elif close := difflib.get_close_matches(keyword, known, 1):
            hint = f"did you mean {close[0]}=?"
        else:
            hint = f"it takes {', '.join(f'{name}=' for name in known)}"
        raise ConfigurationError(f"{call} has no keyword {keyword!r}: {hint}")


def accepted(value: object) -> object:
    """Return a value that is checked elsewhere, by those who know the store or the API."""
    return value


# Options of a lock. None is the default of all of them except these two.
NEVER_NONE = ("fair", "label")
_CHECKS: dict[str, Callable[[object], object]] = {
    "timeout": checked_timeout,
    "lease": checked_lease,
    "renew": lambda value: checked_switch("renew", value),
    "max_hold": lambda value: checked_lease(value, what="max_hold"),
    "fair": lambda value: checked_switch("fair", value),
    "owner": checked_owner,
    "label": checked_label,
    "on_lost": accepted,
    "layout": accepted,
    "warn_after": lambda value: checked_lease(value, what="warn_after"),
}


def checked_options(
    call: str, options: Mapping[str, object], known: Collection[str]
) -> dict[str, Any]:
    """Check the options of a lock and return them, without those that have their default."""
    checked = {}
    for keyword, value in options.items():
        if keyword not in known:
            refuse_foreign(call, {keyword: value}, known)
        if value is not None or keyword in NEVER_NONE:
            checked[keyword] = _CHECKS[keyword](value)
    return checked
