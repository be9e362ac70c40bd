"""What users may say: names, seconds, keywords. Refused here, at the face, before any I/O.

A number that is rounded to "for ever", a name that two stores spell differently, or a keyword of
another library that is silently ignored has cost others their exclusion.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import timedelta

from lockfast.errors import ConfigurationError

Seconds = float | int | timedelta

MAX_NAME_BYTES = 1000
MIN_LEASE = 0.01
MAX_LABEL = 200
MAX_METADATA = 1000
MAX_SECONDS = 366 * 86400.0

# What other libraries call it, and what it is called here.
FOREIGN = {
    "expire": "lease",
    "expires": "lease",
    "ttl": "lease",
    "px": "lease",
    "ex": "lease",
    "lease_time": "lease",
    "leaseTime": "lease",
    "auto_release_time": "lease",
    "lock_timeout": "lease",
    "blocking_timeout": "timeout",
    "wait_time": "timeout",
    "waitTime": "timeout",
    "wait": "timeout",
    "max_wait": "timeout",
    "acquire_timeout": "timeout",
    "auto_renewal": "renew",
    "auto_renew": "renew",
    "auto_extend": "renew",
    "watchdog": "renew",
    "token": "owner",
    "id": "owner",
    "key_prefix": "namespace",
    "prefix": "namespace",
}


def checked_name(name: object, *, what: str = "a name") -> str:
    """The name as it is: never normalised, never cut."""
    if not isinstance(name, str):
        hint = ": decode it first" if isinstance(name, bytes | bytearray) else ""
        raise ConfigurationError(f"{what} is a str, not {type(name).__name__}{hint}")
    if not name:
        raise ConfigurationError(f"{what} must not be empty")
    if "\0" in name:
        raise ConfigurationError(f"{what} must not contain NUL: {name[:80]!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{what} must be valid Unicode, and has a lone surrogate: {name[:80]!r}"
        ) from None
    name = str.__str__(name)  # an enum that is a str is equal to its value, and must lock the same
    if size > MAX_NAME_BYTES:
        raise ConfigurationError(
            f"{what} has {size} bytes, at most {MAX_NAME_BYTES} are allowed: {name[:40]!r}… "
            "(lock a digest of it instead)"
        )
    return name


def checked_label(label: object) -> str:
    return _text("label", label)[:MAX_LABEL]


def checked_metadata(metadata: object) -> str:
    """What a leader tells of itself: not cut, since others parse it."""
    text = _text("metadata", metadata)
    if len(text.encode()) > MAX_METADATA:
        raise ConfigurationError(f"metadata has {len(text.encode())} bytes, of {MAX_METADATA}")
    return text


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{what}={value!r}: a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what}={value!r} is not valid Unicode") from None
    return value


def checked_switch(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what}={value!r}: True or False")
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
            f"namespace={namespace!r}: up to 64 letters, digits, '.', '_' and '-' are allowed"
        )
    return namespace


def checked_lease(lease: object, *, what: str = "lease") -> float:
    """Seconds that a hold lasts: exact, finite and positive."""
    seconds = _number(lease, what)
    if seconds < MIN_LEASE:
        raise ConfigurationError(f"{what}={lease!r}: at least {MIN_LEASE} s, in seconds")
    return seconds


def checked_number(what: str, value: object, most: int) -> int:
    """How many: a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what}={value!r}: a whole number, not {type(value).__name__}")
    if not 1 <= value <= most:
        raise ConfigurationError(f"{what}={value!r}: from 1 to {most}")
    return value


def checked_timeout(timeout: object) -> float | None:
    """Seconds to wait: 0 asks once, None waits without end."""
    if timeout is None:
        return None
    return checked_span(timeout, "timeout", "0 asks once, None waits without end")


def checked_span(span: object, what: str, hint: str) -> float:
    """Seconds that pass, or none."""
    seconds = _number(span, what)
    if seconds < 0:
        raise ConfigurationError(f"{what}={span!r} is negative: {hint}")
    return seconds


def _number(value: object, what: str) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(
            f"{what}={value!r}: a number of seconds (or a timedelta), not {type(value).__name__}"
        )
    if value != value or abs(value) > MAX_SECONDS:
        raise ConfigurationError(
            f"{what}={value!r}: a number of seconds up to {MAX_SECONDS:.0f} (a year)"
        )
    return float(value)


def refuse_foreign(call: str, foreign: Mapping[str, object], known: tuple[str, ...]) -> None:
    """An unknown keyword is an error that names ours."""
    for word in foreign:
        if word in ("blocking", "block"):
            hint = "use try_acquire() to ask once, acquire(timeout=…) to wait"
        elif word in FOREIGN and FOREIGN[word] in known:
            hint = f"did you mean {FOREIGN[word]}=?"
        elif near := difflib.get_close_matches(word, known, 1):
            hint = f"did you mean {near[0]}=?"
        else:
            hint = f"it takes {', '.join(f'{name}=' for name in known)}"
        raise ConfigurationError(f"{call} has no keyword {word!r}: {hint}")


_CHECKS: dict[str, Callable[[object], object]] = {
    "timeout": checked_timeout,
    "lease": checked_lease,
    "renew": lambda value: checked_switch("renew", value),
    "max_hold": lambda value: checked_lease(value, what="max_hold"),
    "fair": lambda value: checked_switch("fair", value),
    "owner": checked_owner,
    "label": checked_label,
    "warn_after": lambda value: checked_lease(value, what="warn_after"),
}


def check_terms(call: str, terms: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Refuse what `Client.lock` would refuse, before there is a client: for decorators."""
    refuse_foreign(call, {word: value for word, value in terms.items() if word not in known}, known)
    for word, value in terms.items():
        if word in _CHECKS and value is not None:
            _CHECKS[word](value)
