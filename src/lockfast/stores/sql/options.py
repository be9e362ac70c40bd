"""What is said in a URL of a SQL store, as far as both dialects have it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from lockfast.errors import ConfigurationError


def refuse_unknown(scheme: str, options: Iterable[str], known: Collection[str]) -> None:
    """An option that a driver would not know, or silently ignore, is an error that names ours."""
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            few = f" (there are: {', '.join(known)})" if len(known) < 10 else ""
            hint = f": did you mean {near[0]}?" if near else few
            raise ConfigurationError(f"{scheme}://: unknown option {option!r}{hint}")


def not_a_url(kind: str, scheme: str) -> ConfigurationError:
    """It is not quoted: it may have a password in it."""
    return ConfigurationError(
        f"not a {kind} URL: {scheme}://user:password@host:port/database is one, where / ? # @ in a "
        "password are written as %2F %3F %23 %40"
    )
