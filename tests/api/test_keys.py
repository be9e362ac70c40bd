"""Key expressions: the template grammar, allowed values, and when mistakes are refused."""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockfast.errors import ConfigurationError
from lockfast.keys import compile_key


@dataclass
class User:
    id: object = 7
    name: str = "ada"


def handle(user: Any, amount: int = 10, *, region: str = "eu") -> None: ...


def name(key: Any, function: Callable[..., object], /, *args: object, **kwargs: object) -> str:
    return compile_key(key, function)(args, kwargs)


def refused(key: Any, function: Callable[..., object] = handle) -> str:
    with pytest.raises(ConfigurationError) as caught:
        compile_key(key, function)
    return str(caught.value)


# --- the grammar


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("nightly", "nightly"),
        ("ACCOUNT:LOCK:USER:{user.id}", "ACCOUNT:LOCK:USER:7"),
        ("{user.name}", "ada"),
        ("{user.name}{amount}:{user.id}!", "ada10:7!"),
        ("{{{user.id}}}", "{7}"),
        ("{{user.id}}", "{user.id}"),
        ("}}{{", "}{"),
        ("a b\n{amount}", "a b\n10"),
        ("{region}", "eu"),
    ],
)
def test_text_braces_and_fields_make_the_name(template: str, expected: str) -> None:
    assert name(template, handle, User()) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{data.rows[0]}", "first"),
        ("{data.rows[-1]}", "last"),
        ("{data.by['X-Id']}", "x"),
        ('{data.by["X-Id"]}', "x"),
        ("{data.by['a._b[0].c']}", "odd"),
        ("{data.by[3]}", "three"),
        ("{data.by['deep'].rows[1]['k']}", "v"),
    ],
)
def test_steps_reach_attributes_items_and_keys(template: str, expected: str) -> None:
    def load(data: object) -> None: ...

    by = {
        "X-Id": "x",
        "a._b[0].c": "odd",
        3: "three",
        "deep": SimpleNamespace(rows=[0, {"k": "v"}]),
    }
    data = SimpleNamespace(rows=["first", "middle", "last"], by=by)
    assert name(template, load, data) == expected


@pytest.mark.parametrize(
    ("template", "column", "why"),
    [
        ("a:{user.__class__}", 8, "underscore"),
        ("a:{user._id}", 8, "underscore"),
        ("a:{_private}", 4, "underscore"),
        ("a:{user['_id']}", 8, "underscore"),
        ('a:{user["__dict__"]}', 8, "underscore"),
        ("a:{user.id()}", 11, "calls"),
        ("a:{user.id!r}", 11, "conversions"),
        ("a:{user.id:>10}", 11, "format specs"),
        ("a:{ user}", 4, "name"),
        ("a:{user }", 8, "spaces"),
        ("a:{user. id}", 8, "dot"),
        ("a:{user.}", 8, "dot"),
        ("a:{user..id}", 8, "dot"),
        ("a:{user.0}", 8, "dot"),
        ("a:{user[ 0]}", 8, "integer"),
        ("a:{user[]}", 8, "integer"),
        ("a:{user[1:2]}", 8, "integer"),
        ("a:{user[007]}", 8, "integer"),
        ("a:{user[+1]}", 8, "integer"),
        ("a:{user[1.5]}", 8, "integer"),
        ("a:{user[key]}", 8, "integer"),
        ("a:{user['a b']}", 8, "integer"),
        ("a:{user['']}", 8, "integer"),
        ("a:{user['a\"]}", 8, "integer"),
        ("a:{user['a\\n']}", 8, "integer"),
        ("a:{user['a'}", 8, "integer"),
        ("a:{user['a{b']}", 8, "integer"),
        ("a:{user['a}b']}", 8, "integer"),
        ("a:{user[" + "9" * 5000 + "]}", 8, "integer"),
        ("a:{amount+1}", 10, "unexpected"),
        ("a:{user=}", 8, "unexpected"),
        ("a:{user.id,}", 11, "unexpected"),
        ("a:{}", 4, "name"),
        ("a:{0}", 4, "name"),
        ("a:{'user'}", 4, "name"),
        ("a:{user.{amount}}", 8, "dot"),
        ("a:{user", 3, "unmatched brace"),
        ("a:{", 3, "unmatched brace"),
        ("a:}", 3, "unmatched brace"),
        ("a:{user}}", 9, "unmatched brace"),
        ("a:{{user}", 9, "unmatched brace"),
    ],
)
def test_a_syntax_error_is_refused_at_decoration_with_its_column(
    template: str, column: int, why: str
) -> None:
    message = refused(template)
    assert repr(template) in message
    assert f"column {column}," in message
    assert why in message
    assert "['key']" in message


def test_a_misspelled_parameter_fails_at_decoration_and_lists_the_right_ones() -> None:
    message = refused("a:{usr.id}")
    assert "handle() has no such parameter (did you mean 'user'?)" in message
    assert "(user, amount, region)" in message
    assert "column 4, at 'usr'" in message


def test_an_unknown_parameter_is_refused_without_a_guess_if_none_is_similar() -> None:
    message = refused("a:{zzz}")
    assert "did you mean" not in message
    assert "(user, amount, region)" in message


@pytest.mark.parametrize("key", ["", b"orders", 5, None, ["a"], {"a": 1}])
def test_a_key_that_is_neither_a_template_nor_a_callable_is_refused(key: object) -> None:
    message = refused(key)
    assert "handle()" in message
    assert repr(key) in message


@given(st.text(alphabet=string.printable + "é{}._[]'\"", max_size=30))
def test_every_template_is_either_compiled_or_refused(template: str) -> None:
    try:
        name_of = compile_key(template, handle)
    except ConfigurationError:
        return
    try:
        assert name_of((User(),), {})
    except ConfigurationError as error:
        assert "{" in template and "handle()" in str(error)


@given(st.text(min_size=1))
def test_text_with_doubled_braces_names_itself(text: str) -> None:
    assert name(text.replace("{", "{{").replace("}", "}}"), handle, None) == text


@given(st.text(alphabet="{}ab", min_size=1, max_size=12), st.text(min_size=1))
def test_a_value_is_inserted_unchanged(around: str, value: str) -> None:
    quoted = around.replace("{", "{{").replace("}", "}}")
    assert name(f"{quoted}{{user}}{quoted}", handle, value) == f"{around}{value}{around}"


# --- which argument


def test_an_argument_is_found_by_position_by_keyword_and_by_default() -> None:
    name_of = compile_key("{user}:{amount}:{region}", handle)
    assert name_of(("u",), {}) == "u:10:eu"
    assert name_of(("u", 3), {"region": "us"}) == "u:3:us"
    assert name_of((), {"user": "u", "amount": 4}) == "u:4:eu"
    assert name_of(("u",), {"amount": 5}) == "u:5:eu"


def test_args_and_kwargs_are_reached_by_item() -> None:
    def gather(first: str, *args: object, tail: str = "t", **kwargs: object) -> None: ...

    key = "{first}:{args[0]}:{args[-1]}:{tail}:{kwargs['x']}"
    assert name(key, gather, "f", 1, 2, x=3) == "f:1:2:t:3"
    assert name(key, gather, "f", 1, 2, 4, 5, x=3, tail="z") == "f:1:5:z:3"
    with pytest.raises(ConfigurationError, match=r"\{args\[0\]\} in the key.*tuple.*no \[0\]"):
        name(key, gather, "f", x=3)
    with pytest.raises(ConfigurationError, match=r"dict.*no \['x'\]"):
        name(key, gather, "f", 1)


def test_a_keyword_called_args_does_not_fill_the_starred_parameter() -> None:
    def gather(*args: object) -> None: ...

    with pytest.raises(TypeError, match="unexpected keyword argument 'args'"):
        name("{args[0]}", gather, args=["x"])


@pytest.mark.parametrize("template", ["{args}", "{kwargs}", "{kwargs.x}", "{args.count}"])
def test_args_and_kwargs_as_a_whole_are_refused_at_decoration(template: str) -> None:
    def gather(*args: object, **kwargs: object) -> None: ...

    assert "collects several values" in refused(template, gather)


def ordinary(a: Any, b: Any = "b", *, c: Any = "c") -> str:
    return f"{a}:{b}:{c}"


def position_only(a: Any, b: Any = "b", /, c: Any = "c") -> str:
    return f"{a}:{b}:{c}"


def keyword_only(*, a: Any, b: Any = "b", c: Any) -> str:
    return f"{a}:{b}:{c}"


def starred(a: Any, *args: Any, b: Any = "b", c: Any = "c") -> str:
    return f"{a}:{b}:{c}"


def open_ended(a: Any, b: Any = "b", c: Any = "c", **kwargs: Any) -> str:
    return f"{a}:{b}:{c}"


@given(
    st.sampled_from([ordinary, position_only, keyword_only, starred, open_ended]),
    st.lists(st.integers(0, 99), max_size=4).map(tuple),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 99)),
    st.sampled_from(["template", "callable"]),
)
def test_the_name_is_made_from_the_arguments_that_python_would_bind(
    function: Callable[..., str], args: tuple[int, ...], kwargs: dict[str, object], how: str
) -> None:
    name_of = compile_key("{a}:{b}:{c}" if how == "template" else function, function)
    try:
        expected = function(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError) as caught:
            name_of(args, kwargs)
        assert str(caught.value).startswith(f"{function.__name__}() ")
    else:
        assert name_of(args, kwargs) == expected


@pytest.mark.parametrize("key", ["constant", "{user.id}", lambda user, amount, region: "k"])
@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required"),
        (("u", 1, 2), {}, "got too many positional arguments"),
        (("u",), {"user": "v"}, "got multiple values for argument 'user'"),
        (("u",), {"shade": "red"}, "got an unexpected keyword argument 'shade'"),
    ],
)
def test_a_call_that_the_function_does_not_accept_raises_its_type_error(
    key: Any, args: tuple[object, ...], kwargs: dict[str, object], why: str
) -> None:
    with pytest.raises(TypeError, match=rf"handle\(\) {why}") as caught:
        compile_key(key, handle)(args, kwargs)
    assert not isinstance(caught.value, ConfigurationError)


def test_methods_wrapped_functions_and_coroutine_functions_work() -> None:
    class Account:
        id = 3

        def pay(self, amount: int) -> None: ...

        async def drain(self) -> None: ...

    @functools.wraps(handle)
    def wrapped(*args: object, **kwargs: object) -> None: ...

    assert name("{self.id}:{amount}", Account.pay, Account(), 5) == "3:5"
    assert name("{amount}", Account().pay, 5) == "5"
    assert name("{self.id}", Account.drain, Account()) == "3"
    assert name("{user.id}:{amount}", wrapped, User()) == "7:10"


@pytest.mark.parametrize("function", [classmethod(handle), property(handle), 5])
def test_an_object_without_a_signature_is_refused(function: Any) -> None:
    assert "below any @classmethod" in refused("{user.id}", function)


# --- values


class Paint(Enum):
    RED = "red"
    NONE = None
    YES = True
    BLANK = ""


class Size(IntEnum):
    LARGE = 3


class Mood(StrEnum):
    CALM = "calm"


class Loud(str, Enum):  # noqa: UP042 - its str() is "Loud.A", unlike a StrEnum's
    A = "a"


class Masked(str):
    def __str__(self) -> str:
        return "****"


class Count(int):
    def __str__(self) -> str:
        return "many"


ID = UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x", "x"),
        (" ", " "),
        (0, "0"),
        (-5, "-5"),
        (2**63, str(2**63)),
        (ID, str(ID)),
        (Decimal("1.50"), "1.50"),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC), "2024-02-29T01:02:03+00:00"),
        (datetime(2024, 2, 29), "2024-02-29T00:00:00"),
        (PurePosixPath("/srv/data"), "/srv/data"),
        (Paint.RED, "red"),
        (Size.LARGE, "3"),
        (Mood.CALM, "calm"),
        (Loud.A, "a"),
        (Masked("secret"), "secret"),
        (Count(5), "5"),
    ],
)
def test_values_that_their_text_identifies_become_part_of_the_name(
    value: object, expected: str
) -> None:
    assert name("k:{user.id}", handle, User(value)) == f"k:{expected}"


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        1.5,
        float("nan"),
        b"x",
        bytearray(b"x"),
        ["x"],
        ("x",),
        {"x": 1},
        {1},
        object(),
        User(),
        User,
        len,
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        10**5000,
        "",
        Masked(""),
        Paint.NONE,
        Paint.YES,
        Paint.BLANK,
        Mock(spec=UUID),
        Mock(spec=str),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_do_not_identify_themselves_are_refused_with_advice(value: object) -> None:
    name_of = compile_key("k:{user.id}", handle)
    with pytest.raises(ConfigurationError) as caught:
        name_of((User(value),), {})
    message = str(caught.value)
    assert "{user.id} in the key for handle()" in message
    assert f"of type {type(value).__name__}" in message
    assert "Name an attribute of it" in message
    assert "0x" not in message


def test_the_message_says_that_an_empty_value_is_empty() -> None:
    with pytest.raises(ConfigurationError, match="of type str and empty"):
        name("{user}", handle, "")


def test_an_unusable_default_is_refused_in_the_call_that_uses_it() -> None:
    def find(user: object = None) -> None: ...

    name_of = compile_key("{user}", find)
    assert name_of(("u",), {}) == "u"
    with pytest.raises(ConfigurationError, match="NoneType"):
        name_of((), {})


simple = [st.text(min_size=1), st.integers(), st.uuids(), st.dates(), st.datetimes()]


@given(st.one_of([st.lists(kind, min_size=2, max_size=2, unique=True) for kind in simple]))
def test_different_values_of_one_type_have_different_names(pair: list[object]) -> None:
    one, other = pair
    assert name("k:{user}", handle, one) != name("k:{user}", handle, other)


@pytest.mark.parametrize(
    ("template", "reached", "kind", "missing", "cause"),
    [
        ("{user.nick.id}", "user", "User", ".nick", AttributeError),
        ("{user.name.first}", "user.name", "str", ".first", AttributeError),
        ("{user.id['b']}", "user.id", "dict", "['b']", KeyError),
        ("{user.id['a'][2]}", "user.id['a']", "list", "[2]", IndexError),
        ("{user.id['a']['k']}", "user.id['a']", "list", "['k']", TypeError),
        ("{amount[0]}", "amount", "int", "[0]", TypeError),
    ],
)
def test_a_missing_attribute_or_item_is_refused_with_the_path_up_to_it(
    template: str, reached: str, kind: str, missing: str, cause: type[Exception]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        name(f"k:{template}", handle, User({"a": [0]}))
    expected = f"{template} in the key for handle(): {reached} is of type {kind} and has no "
    assert str(caught.value) == expected + missing
    assert type(caught.value.__cause__) is cause


def test_other_exceptions_of_a_property_pass_through() -> None:
    class Row:
        @property
        def id(self) -> int:
            raise ConnectionResetError("database gone")

    with pytest.raises(ConnectionResetError, match="database gone"):
        name("{user.id}", handle, Row())


# --- callables


def test_a_callable_gets_the_arguments_of_the_call_and_the_defaults_of_the_function() -> None:
    def charge(user: User, amount: int = 10, *, region: str = "eu") -> None: ...

    def key(user: User, amount: int, region: str = "unused", *_: object) -> str:
        return f"x:{user.id}:{amount}"

    name_of = compile_key(lambda user, amount, *, region: f"{user.id}:{amount}:{region}", charge)
    assert name_of((User(),), {}) == "7:10:eu"
    assert name_of((), {"amount": 2, "user": User(1), "region": "us"}) == "1:2:us"
    assert name(key, charge, User()) == "x:7:10"


def test_the_shortest_lambda_works() -> None:
    def one(user: User) -> None: ...

    assert name(lambda user: f"x:{user.id}", one, User()) == "x:7"
    assert name(lambda user: f"x:{user.id}", one, user=User()) == "x:7"


def test_a_callable_may_collect_the_remaining_arguments() -> None:
    def gather(user: str, *args: object, **kwargs: object) -> None: ...

    def key(user: str, *rest: object, **options: object) -> str:
        return f"{user}:{rest}:{options}"

    assert name(key, gather, "u", 1, x=2) == "u:(1,):{'x': 2}"
    assert name(lambda user, *_, **__: f"{user}", handle, "u") == "u"
    assert (
        name(lambda *args, **kwargs: f"{args}{kwargs}", handle, "u") == "('u', 10){'region': 'eu'}"
    )


@pytest.mark.parametrize(
    "key",
    [
        lambda: "k",
        lambda user: "k",
        lambda user, amount: "k",
        lambda usr, amount, region: "k",
        lambda amount, user, region: "k",
        lambda user, amount, region, more: "k",
        lambda user, *, amount=1, region="": "k",
        lambda *args, user=None, **kwargs: "k",
        lambda amount=1, *args, **kwargs: "k",
        lambda user, amount, region, /: "k",
        lambda user, *args: "k",
    ],
)
def test_a_callable_that_would_get_other_arguments_is_refused_at_decoration(key: Any) -> None:
    message = refused(key)
    assert "(user, amount, region)" in message
    assert "same parameters in the same order" in message


def test_a_callable_without_stars_is_refused_for_a_function_with_them() -> None:
    def gather(user: str, *args: object) -> None: ...

    def scatter(user: str, **kwargs: object) -> None: ...

    for function in (gather, scatter):
        assert "in the same order" in refused(lambda user: "k", function)
        assert "in the same order" in refused(lambda user, args=(), kwargs=None: "k", function)


def test_an_async_callable_or_one_without_a_signature_is_refused_at_decoration() -> None:
    async def later(user: User, amount: int, region: str) -> str:
        return "k"

    assert "async" in refused(later)
    assert "no signature" in refused("orders:{}".format)


@pytest.mark.parametrize("result", [None, 5, b"k", "", Masked("")])
def test_a_callable_that_returns_no_str_is_refused_in_the_call(result: Any) -> None:
    name_of = compile_key(lambda user, **_: result, lambda user: None)
    with pytest.raises(ConfigurationError, match=f"non-empty str, not .*{type(result).__name__}"):
        name_of(("u",), {})


def test_a_callable_may_return_a_str_subclass_and_its_content_counts() -> None:
    for result in (Mood.CALM, Loud.A, Masked("m")):
        found = name(lambda user, result=result: result, lambda user: None, "u")
        assert type(found) is str
        assert found in ("calm", "a", "m")


def test_exceptions_of_a_callable_pass_through() -> None:
    def key(user: object) -> str:
        raise TypeError("my own")

    with pytest.raises(TypeError, match=r"^my own$"):
        name(key, lambda user: None, "u")


# --- prefix


def test_a_prefix_is_plain_text_before_the_name() -> None:
    def one(user: User) -> None: ...

    assert compile_key("{user.id}", one, prefix="app{x}")((User(),), {}) == "app{x}:7"
    assert compile_key("c", one, prefix="app")((User(),), {}) == "app:c"
    assert compile_key(lambda user: "k", one, prefix="app")((User(),), {}) == "app:k"


@pytest.mark.parametrize("prefix", ["", 5, b"app", True])
def test_a_prefix_that_is_no_str_is_refused(prefix: Any) -> None:
    with pytest.raises(ConfigurationError, match="prefix must be a non-empty str"):
        compile_key("k", handle, prefix=prefix)


def test_an_ordinary_call_does_not_use_signature_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    name_of = compile_key("{user.id}:{region}", handle)
    monkeypatch.delattr(inspect.Signature, "bind")
    assert name_of((User(),), {}) == "7:eu"
    assert name_of((User(), 3), {}) == "7:eu"
    assert name_of((), {"user": User(), "region": "us"}) == "7:us"
