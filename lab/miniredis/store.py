"""`MiniRedis`: the keyspace, the commands and the scripts put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from lab.miniredis import hashes, sorted_sets, strings
from lab.miniredis.keyspace import (
    OK,
    Argument,
    Arguments,
    Keyspace,
    MiniError,
    Reply,
    integer,
)
from lab.miniredis.scripts import Command, Engine, Function

COMMANDS: dict[bytes, Command] = {
    **strings.COMMANDS,
    **hashes.COMMANDS,
    **sorted_sets.COMMANDS,
}


@cache
def _engine() -> Engine:
    """One engine for all stores of the process: a runtime costs far more than a store."""
    return Engine(COMMANDS, frozenset(_ABOUT_SCRIPTS))


class MiniRedis(Keyspace):
    """A Redis 7 on the clock ``time_us`` (microseconds since the epoch).

    ``published`` gets the channel and the message of each PUBLISH and returns the number of
    receivers. It must not run a script itself: queue such work. ``listening`` returns the number of
    subscribers of a channel. Stores share one Lua runtime, so use them from one thread.

    Error replies are raised as `MiniError`. A command or an option that this store does not have
    raises `NotImplementedError`, through any ``pcall`` of a script.
    """

    __slots__ = ("_scripts",)

    def __init__(
        self,
        time_us: Callable[[], int],
        published: Callable[[str, bytes], int],
        listening: Callable[[str], int] = lambda channel: 0,
    ) -> None:
        super().__init__(time_us, published, listening)
        self._scripts: dict[str, Function] = {}

    def call(self, *args: Argument) -> Reply:
        """The reply to one command, such as ``call("HSET", "key", "field", 1)``."""
        argv = _encode_all(args)
        name = argv[0].upper() if argv else b""
        own = _ABOUT_SCRIPTS.get(name)
        command = COMMANDS.get(name)
        if own is not None:
            run, arity = own
        elif command is not None:
            run, arity = command
        else:
            raise NotImplementedError(f"miniredis has no command {name!r}")
        count = len(argv)
        if count != arity and (arity > 0 or count < -arity):
            shown = name.decode().lower()
            raise MiniError(f"ERR wrong number of arguments for '{shown}' command")
        self.now_us = self.time_us()
        return run(self, argv)

    def eval(
        self, source: str | bytes, keys: Sequence[Argument], args: Sequence[Argument]
    ) -> Reply:
        """Run a script, and remember it by its SHA."""
        return self._run(self._learn(source)[1], _encode_all(keys), _encode_all(args))

    def evalsha(self, sha: str, keys: Sequence[Argument], args: Sequence[Argument]) -> Reply:
        """Run a remembered script. `MiniError` with NOSCRIPT if there is none."""
        function = self._scripts.get(sha)
        if function is None:
            function = self._scripts.get(sha.lower())
            if function is None:
                raise MiniError("NOSCRIPT No matching script. Please use EVAL.")
        return self._run(function, _encode_all(keys), _encode_all(args))

    def script_load(self, source: str | bytes) -> str:
        """Remember a script, and return its SHA."""
        return self._learn(source)[0]

    def script_flush(self) -> None:
        """Forget all scripts, as a restart does."""
        self._scripts.clear()

    def flushall(self) -> None:
        """Forget all keys, but no scripts."""
        self.values.clear()
        self.expiries.clear()

    def _learn(self, source: str | bytes) -> tuple[str, Function]:
        sha, function = _engine().compile(source.encode() if isinstance(source, str) else source)
        self._scripts[sha] = function
        return sha, function

    def _run(self, function: Function, keys: Arguments, args: Arguments) -> Reply:
        self.now_us = self.time_us()
        return _engine().run(self, function, keys, args)


def _encode_all(args: Sequence[Argument]) -> Arguments:
    return tuple([arg if type(arg) is bytes else _encoded(arg) for arg in args])


def _encoded(arg: Argument) -> bytes:
    if isinstance(arg, bytes):
        return arg
    if isinstance(arg, str):
        return arg.encode()
    if type(arg) is int:
        return b"%d" % arg
    raise TypeError(f"an argument of a command is str, bytes or int, not {arg!r}")


def _eval(store: MiniRedis, argv: Arguments) -> Reply:
    keys, args = _split(argv)
    return store.eval(argv[1], keys, args)


def _evalsha(store: MiniRedis, argv: Arguments) -> Reply:
    keys, args = _split(argv)
    return store.evalsha(argv[1].decode("utf-8", "replace"), keys, args)


def _split(argv: Arguments) -> tuple[Arguments, Arguments]:
    count = integer(argv[2])
    if count > len(argv) - 3:
        raise MiniError("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise MiniError("ERR Number of keys can't be negative")
    return argv[3 : 3 + count], argv[3 + count :]


def _script(store: MiniRedis, argv: Arguments) -> Reply:
    match [argv[1].upper(), *argv[2:]]:
        case [b"LOAD", source]:
            return store.script_load(source).encode()
        case [b"EXISTS", *shas] if shas:
            return [int(sha.decode("utf-8", "replace").lower() in store._scripts) for sha in shas]
        case [b"FLUSH", *how] if [name.upper() for name in how] in ([], [b"SYNC"], [b"ASYNC"]):
            store.script_flush()
            return OK
        case [b"FLUSH", *_]:
            raise MiniError("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
        case [b"LOAD" | b"EXISTS" as name, *_]:
            shown = name.decode().lower()
            raise MiniError(f"ERR wrong number of arguments for 'script|{shown}' command")
    raise NotImplementedError(f"miniredis has no SCRIPT {argv[1]!r}")


# Not to be called from a script.
_ABOUT_SCRIPTS: dict[bytes, tuple[Callable[[MiniRedis, Arguments], Reply], int]] = {
    b"EVAL": (_eval, -3),
    b"EVALSHA": (_evalsha, -3),
    b"SCRIPT": (_script, -2),
}
