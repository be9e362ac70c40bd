"""From a call's arguments to the name of its lock: the key of ``@client.locked(key)``.

A key is a template, or a callable that takes what the function takes. The template's grammar is
our own and smaller than that of ``str.format``, which reaches ``__class__`` and prints anything:

    template = { text | "{{" | "}}" | "{" parameter { step } "}" }
    step     = "." name | "[" integer "]" | "['" word "']" | '["' word '"]'

No parameter, name or word starts with an underscore; a word holds no space, quote, backslash or
brace. What does not parse is refused when the function is decorated; what only a call can show
is refused in the call, before any I/O. The rules for values:

1. Only what its text identifies becomes part of a name: str, int, UUID, Decimal, date, datetime,
   path, Enum by its value. A default ``repr`` holds an address: each call would lock alone.
2. No value vanishes (an empty one is refused) and none is escaped: let the template part them.
3. Equal values may differ in text, and then are two locks: Decimal("1.0") and Decimal("1.00").
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from inspect import BoundArguments, Parameter, iscoroutinefunction, signature
from operator import attrgetter, itemgetter
from pathlib import PurePath
from typing import Any
from uuid import UUID

from lockfast.errors import ConfigurationError

Key = str | Callable[..., str]

NameOf = Callable[[tuple[object, ...], dict[str, object]], str]


def compile_key(
    key: str | Callable[..., str], function: Callable[..., object], *, prefix: str | None = None
) -> NameOf:
    """Return ``name_of(args, kwargs)``, which names the lock for one call of ``function``.

    Raises ConfigurationError for whatever is wrong with ``key`` itself. ``name_of`` raises it for
    a value that cannot be part of a name, and TypeError for a call that ``function`` would not
    take either; what else a property or a key callable raises passes through. A key callable gets
    the function's arguments, defaults included. ``prefix="app"`` makes every name ``app:...``.
    """
    if prefix is not None and not (isinstance(prefix, str) and prefix):
        raise ConfigurationError(f"prefix must be a non-empty str or None, not {prefix!r}")
    head = f"{prefix}:" if prefix else ""
    call = _Call(function)
    if isinstance(key, str) and key:
        return _from_template(key, call, head)
    if callable(key):
        return _from_callable(key, call, head)
    raise ConfigurationError(
        f"the key for {call.label} must be a non-empty template such as 'orders:{{order_id}}', or "
        f"a callable that returns a str, not {key!r}"
    )


def _from_template(template: str, call: _Call, head: str) -> NameOf:
    parts = _parse(template, call)

    def name_of(args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        if not call.fits(args, kwargs):
            args, kwargs = (), call.bind(args, kwargs).arguments
        name = head
        for part in parts:
            name += part if isinstance(part, str) else part.text(args, kwargs)
        return name

    return name_of


def _from_callable(key: Callable[..., str], call: _Call, head: str) -> NameOf:
    mine = _Call(key)
    label = f"the key callable {mine.label} for {call.label}"
    if iscoroutinefunction(key):
        raise ConfigurationError(f"{label} is async, but a name is made without I/O: use def")
    # Bound calls all have one shape, so that one trial stands for all. Each argument in it is its
    # own parameter's name: what arrives under another name would lock something else.
    trial = OrderedDict((n, _MANY.get(p.kind, n)) for n, p in call.parameters.items())
    every = BoundArguments(call.signature, trial)
    try:
        found = mine.signature.bind(*every.args, **every.kwargs).arguments
        for n, p in mine.parameters.items():
            if p.kind not in _MANY and found.get(n) != (n if n in trial else None):
                raise TypeError(f"{n!r} would not get the argument of that name")
    except TypeError as error:
        raise ConfigurationError(
            f"{label} takes {mine.shown}, but is called with {call.shown}: {error}. Give it the "
            "same parameters in the same order, or the first of them and then *args, **kwargs"
        ) from None

    def name_of(args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        bound = call.bind(args, kwargs)
        name: object = key(*bound.args, **bound.kwargs)
        if not (isinstance(name, str) and name):
            raise ConfigurationError(f"{label} must return a non-empty str, not this {type(name)}")
        return head + str.__str__(name)  # str() of a subclass may be anything.

    return name_of


_Get = Callable[[Any], object]
_MANY: dict[object, object] = {Parameter.VAR_POSITIONAL: ("*",), Parameter.VAR_KEYWORD: {"*": "*"}}
_TEXT = re.compile(r"(\{)\{|(\})\}|([^{}]+)")
_NAME = re.compile(r"[^\W\d_]\w*")
# Eighteen digits are more than any index has; thousands would be an error of int() itself.
_STEP = re.compile(
    r"\.(?P<attribute>[^\W\d_]\w*)|\[(?P<index>0|-?[1-9][0-9]{0,17})\]"
    r"""|\[(?P<quote>['"])(?P<word>[^'"\\\s{_][^'"\\\s{]*)(?P=quote)\]"""
)
_WHY = {
    "(": "calls are not allowed",
    "!": "conversions such as !r are not allowed",
    ":": "format specs are not allowed",
    " ": "spaces are not allowed inside braces",
    ".": "an attribute's name without a leading underscore must follow the dot",
    "[": "an index is an integer, or a quoted word without a space or a leading underscore",
}


def _parse(template: str, call: _Call) -> list[str | _Field]:
    parts: list[str | _Field] = []
    at = 0
    while at < len(template):
        if text := _TEXT.match(template, at):
            parts.append(text[text.lastindex or 0])
            at = text.end()
        elif template[at] == "}" or (end := template.find("}", at)) < 0:
            raise _refusal(template, at, len(template), "this brace has no partner")
        else:
            parts.append(_parse_field(template, at + 1, end, call))
            at = end + 1
    return parts


def _parse_field(template: str, start: int, end: int, call: _Call) -> _Field:
    if not (name := _NAME.match(template, start, end)):
        raise _refusal(template, start, end, "not a name without a leading underscore")
    if not (parameter := call.parameters.get(name[0])):
        near = [f" (did you mean {n!r}?)" for n in get_close_matches(name[0], call.parameters, 1)]
        why = f"{call.label} has no such parameter{''.join(near)}; it takes {call.shown}"
        raise _refusal(template, start, name.end(), why)
    at = name.end()
    if parameter.kind in _MANY and template[at] != "[":
        raise _refusal(template, start, end, "this one holds many: take one by [0] or ['key']")
    steps: list[tuple[str, str, _Get]] = []
    while at < end:
        if not (step := _STEP.match(template, at, end)):
            raise _refusal(template, at, end, _WHY.get(template[at], "not understood"))
        item = int(step["index"]) if step["index"] else step["word"]
        get: _Get = attrgetter(step["attribute"]) if step["attribute"] else itemgetter(item)
        steps.append((template[start:at], step[0], get))
        at = step.end()
    where = f"{template[start - 1 : end + 1]} in the key for {call.label}"
    return _Field(where, name[0], list(call.parameters).index(name[0]), parameter.default, steps)


def _refusal(template: str, start: int, end: int, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"key {template!r}, column {start + 1}, at {template[start:end]!r}: {why}. Allowed are "
        "text, {{ and }} for braces, and {parameter} followed by any of .attribute, [0], [-1] and "
        "['key']; for anything else pass a callable"
    )


class _Call:
    """What a function can be called with, found once: Signature.bind costs microseconds."""

    def __init__(self, function: Callable[..., object]):
        self.label = f"{getattr(function, '__qualname__', type(function).__name__)}()"
        try:
            self.signature = signature(function)
        except (TypeError, ValueError) as error:
            why = "has no signature: it must be a def or a lambda, below any @classmethod"
            raise ConfigurationError(f"{self.label} {why}") from error
        self.parameters = self.signature.parameters
        self.shown = f"({', '.join(self.parameters)})"
        # What may and must come by keyword after n by position; *args and **kwargs are bound.
        ps = list(self.parameters.values())
        most = sum(p.kind is not p.KEYWORD_ONLY for p in ps)
        ns = range(0 if any(p.kind in _MANY for p in ps) else most + 1)
        self._may = [{p.name for p in ps[n:] if p.kind is not p.POSITIONAL_ONLY} for n in ns]
        self._must = [{p.name for p in ps[n:] if p.default is p.empty} for n in ns]

    def fits(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Whether this is a call that the function takes; False also means "ask bind"."""
        n = len(args)
        return n < len(self._may) and self._must[n] <= kwargs.keys() <= self._may[n]

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> BoundArguments:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            got = "got " if str(error).startswith(("too many", "multiple")) else ""
            raise TypeError(f"{self.label} {got}{error}") from None
        bound.apply_defaults()
        return bound


@dataclass(frozen=True, slots=True)
class _Field:
    """One ``{parameter.step...}``; each step with the text before it, its own, and its getter."""

    where: str
    parameter: str
    position: int  # Past every argument by position if the parameter is keyword-only.
    default: object
    steps: list[tuple[str, str, _Get]]

    def text(self, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        by_position = self.position < len(args)
        value = args[self.position] if by_position else kwargs.get(self.parameter, self.default)
        try:
            for step in self.steps:
                value = step[2](value)
        except (AttributeError, LookupError, TypeError) as error:
            found = f"{step[0]} is of type {type(value).__name__} and gives no {step[1]}"
            raise ConfigurationError(f"{self.where}: {found}") from error
        if text := value if type(value) is str else _text(value):
            return text
        found = f"of type {type(value).__name__}{' and empty' if text == '' else ''}"
        raise ConfigurationError(
            f"{self.where} is {found}: its text does not identify it, as True equals 1 and an "
            "object prints its address. Name an attribute of it, e.g. {user.id}, or make it a str"
        )


def _text(value: object) -> str | None:
    if type(value) is not value.__class__:
        return None  # A mock or a proxy: its text is not that of what it claims to be.
    match value:
        case Enum():
            return _text(value.value)
        case str():
            return str.__str__(value)  # str() of a subclass may be anything.
        case int() if type(value) is not bool and value.bit_length() < 2048:
            return int.__repr__(value)  # Python may refuse to print one of 640 digits.
        case date():
            return value.isoformat()
        case UUID() | PurePath():
            return str(value)
        case Decimal() if value.is_finite():
            return str(value)
    return None
