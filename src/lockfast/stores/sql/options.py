"""Validation of the URLs of SQL stores, as far as both dialects share it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from lockfast.errors import ConfigurationError


def refuse_unknown(scheme: str, options: Iterable[str], known: Collection[str]) -> None:
    """Refuse an option that the driver does not know or would silently ignore; suggest a known
    one."""
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, 1)
            choices = f" (there are: {', '.join(known)})" if len(known) < 10 else ""
            hint = f": did you mean {close[0]}?" if close else choices
            raise ConfigurationError(f"{scheme}://: unknown option {option!r}{hint}")


def not_a_url(kind: str, scheme: str) -> ConfigurationError:
    """Build the error for a malformed URL. The URL is not quoted: it may contain a password."""
    return ConfigurationError(
        f"not a valid {kind} URL: expected {scheme}://user:password@host:port/database, with / ? "
        "# @ in a password written as %2F %3F %23 %40"
    )
