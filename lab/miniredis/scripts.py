"""Lua 5.1 as Redis runs it: one runtime for the whole process, and each script compiled once.

A script meets the store through one Python function, `dispatch`. What crosses between the two
languages is made to be cheap: scalars as they are, lists as many values instead of tables, which
Lua puts together and takes apart itself.

To Lua, ``dispatch`` answers with a string, a number, ``false`` for nothing, a table that is large
or nested, or with several values: ``true, …`` is a list and ``nil, kind, text`` is a status, an
error, or the wish to have the numbers spelled. From Lua, a reply comes as a scalar, or as a stream
in which ``true, n`` begins a list of n values and ``true, -1, text`` is an error.

One script at a time: neither threads nor what `published` calls may begin another.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from lab.miniredis.keyspace import (
    LARGEST,
    SMALLEST,
    Arguments,
    Keyspace,
    MiniError,
    Reply,
    Status,
    spelled,
)

Command: TypeAlias = tuple[Callable[[Keyspace, Arguments], Reply], int]
Function: TypeAlias = Any  # a compiled script, which lupa gives no type

MOST_RETURNED = 500  # more values than this travel in a table: Lua 5.1 has a small stack for C
COMPILED = 1000  # scripts kept in the process; a random test makes many

_STATUS, _ERROR, _SPELL = 1, 2, 3

_PRELUDE = rb"""
local dispatch, sha1hex, MANY = ...
local error, pcall, select, type, unpack = error, pcall, select, type, unpack
local find, format, gsub, sub = string.find, string.format, string.gsub, string.sub
local SPELL = {}

local function special(kind, text)
  if kind == 1 then return {ok = text} end
  if kind == 2 then error({err = text}, 0) end
  return SPELL
end

local function answer(first, ...)
  if first == true then return {...} end
  if first == nil then return special(...) end
  return first
end

-- Numbers as Redis writes them. Python does it too, but does not see the sign of -0 and of nan.
local function spell(...)
  local args = {...}
  for i = 1, select('#', ...) do
    if type(args[i]) == 'number' then args[i] = format('%.17g', args[i]) end
  end
  return unpack(args, 1, select('#', ...))
end

local function call(...)
  local reply = answer(dispatch(...))
  if reply == SPELL then return answer(dispatch(spell(...))) end
  return reply
end

-- An exception of Python is a userdata here. No script may catch it.
local function protected(...)
  local fine, reply = pcall(call, ...)
  if fine or type(reply) == 'table' then return reply end
  error(reply, 0)
end

local function caught(fine, ...)
  if fine then return fine, ... end
  local reason = ...
  if type(reason) == 'userdata' then error(reason, 0) end
  if type(reason) == 'table' then
    local kind = type(reason.err)
    if kind == 'string' or kind == 'number' then reason = reason.err end
  end
  return false, reason
end

local function single(field)
  return function(...)
    local text = ...
    if select('#', ...) ~= 1 or type(text) ~= 'string' then
      return {err = 'ERR wrong number or type of arguments'}
    end
    if field == 'err' then
      if sub(text, 1, 1) == '-' then text = sub(text, 2) end
      if not find(text, ' ', 1, true) then text = 'ERR ' .. text end
    end
    return {[field] = text}
  end
end

local frozen = {}

local READONLY = 'Attempt to modify a readonly table'

local function refuse() error(READONLY, 2) end

local function unless_frozen(change)
  return function(t, ...)
    if frozen[t] then error(READONLY, 0) end
    return change(t, ...)
  end
end

local function freeze(contents)
  local view = setmetatable({}, {__index = contents, __newindex = refuse, __metatable = false})
  frozen[view] = true
  return view
end

local function copy(library, without)
  local contents = {}
  for name, value in pairs(library) do contents[name] = value end
  for _, name in ipairs(without) do contents[name] = nil end
  return freeze(contents)
end

local globals = setmetatable({
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, next = next,
  pairs = pairs, rawequal = rawequal, rawget = rawget, select = select,
  tonumber = tonumber, tostring = tostring, type = type, unpack = unpack, _VERSION = _VERSION,
  rawset = unless_frozen(rawset), setmetatable = unless_frozen(setmetatable),
  string = copy(string, {'dump'}), table = copy(table, {}),
  math = copy(math, {'random', 'randomseed'}),
  pcall = function(...) return caught(pcall(...)) end,
  redis = freeze({
    call = call, pcall = protected, error_reply = single('err'), status_reply = single('ok'),
    sha1hex = function(...)
      if select('#', ...) ~= 1 then error({err = 'ERR wrong number of arguments'}, 0) end
      return sha1hex(tostring((...)))
    end,
  }),
}, {__index = function(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end})
globals._G = freeze(globals)

local function compile(source)
  local script, reason = loadstring(source, '@user_script')
  if not script then return reason end
  return setfenv(script, globals._G)
end

local function plain(text) return (gsub(text, '[\r\n]', ' ')) end

local function flatten(value, out, size)
  local kind = type(value)
  if kind == 'string' or kind == 'number' then
    out[size + 1] = value
    return size + 1
  elseif kind ~= 'table' then
    out[size + 1] = value == true and 1
    return size + 1
  elseif type(value.err) == 'string' then
    out[size + 1], out[size + 2], out[size + 3] = true, -1, plain(value.err)
    return size + 3
  elseif type(value.ok) == 'string' then
    out[size + 1] = plain(value.ok)
    return size + 1
  end
  local start, count = size + 1, 0
  out[start], out[start + 1] = true, 0
  size = size + 2
  while value[count + 1] ~= nil do
    count = count + 1
    size = flatten(value[count], out, size)
  end
  out[start + 1] = count
  return size
end

local function finish(fine, value)
  local kind = type(value)
  if not fine then
    if kind == 'userdata' then error(value, 0) end
    if kind == 'table' then value = value.err else value = 'ERR ' .. tostring(value) end
    if type(value) ~= 'string' then value = 'ERR an error without text kills Redis 7.0' end
    return true, -1, plain(value)
  end
  if kind == 'string' or kind == 'number' then return value end
  if kind ~= 'table' then return value == true and 1 end
  local out = {}
  local size = flatten(value, out, 0)
  if size > MANY then return out end
  return unpack(out, 1, size)
end

local split = {
  [0] = function(...) return {}, {...} end,
  function(a, ...) return {a}, {...} end,
  function(a, b, ...) return {a, b}, {...} end,
  function(a, b, c, ...) return {a, b, c}, {...} end,
  function(a, b, c, d, ...) return {a, b, c, d}, {...} end,
}

local function run(script, count, ...)
  globals.KEYS, globals.ARGV = split[count](...)
  return finish(pcall(script))
end

local function run_with(script, keys, arguments)
  globals.KEYS, globals.ARGV = keys, arguments
  return finish(pcall(script))
end

return compile, run, run_with
"""


class Engine:
    """The Lua of this process. `run` binds it to one store for the time of one script."""

    def __init__(self, commands: Mapping[bytes, Command], forbidden: frozenset[bytes]) -> None:
        try:
            lupa = importlib.import_module("lupa.lua51")
        except ImportError as error:
            raise ImportError("miniredis runs Lua 5.1 by lupa: pip install lupa") from error
        self._lua = lupa.LuaRuntime(
            encoding=None,  # strings are bytes
            unpack_returned_tuples=True,
            register_eval=False,
            register_builtins=False,
        )
        self._commands = dict(commands)
        self._forbidden = forbidden
        self._compiled: dict[bytes, tuple[str, Function]] = {}
        self._space: Keyspace | None = None
        self._compile, self._run, self._run_with = self._lua.execute(
            _PRELUDE, self._dispatch, _sha1hex, MOST_RETURNED
        )

    def compile(self, source: bytes) -> tuple[str, Function]:
        """The script's SHA and what to run, or `MiniError`."""
        known = self._compiled.get(source)
        if known is None:
            function = self._compile(source)
            if isinstance(function, bytes):
                raise MiniError(f"ERR Error compiling script (new function): {_text(function)}")
            if len(self._compiled) >= COMPILED:
                self._compiled.clear()
            known = self._compiled[source] = hashlib.sha1(source).hexdigest(), function
        return known

    def run(
        self, space: Keyspace, function: Function, keys: Arguments, arguments: Arguments
    ) -> Reply:
        if self._space is not None:
            raise RuntimeError("a script began inside a script, or in another thread")
        self._space = space
        try:
            if len(keys) <= 4 and len(arguments) <= MOST_RETURNED:
                flat = self._run(function, len(keys), *keys, *arguments)
            else:
                table = self._lua.table_from
                flat = self._run_with(function, table(keys), table(arguments))
        finally:
            self._space = None
        kind = type(flat)
        if kind is bytes or kind is int:
            return flat  # type: ignore[no-any-return]
        if kind is not tuple:
            if flat is False or kind is float:
                return _scalar(flat)
            flat = tuple(flat[at] for at in range(1, len(flat) + 1))
        reply = _read(flat)
        if type(reply) is MiniError:
            raise reply
        return reply

    def _dispatch(self, *argv: Any) -> Any:
        """One ``redis.call``: what it answers is at the top of this file."""
        try:
            for name in argv:
                if type(name) is not bytes:
                    argv = _spell(argv)
                    if not argv:
                        return None, _SPELL
                    break
            command = self._commands.get(argv[0]) if argv else None
            if command is None:
                command = self._find(argv)
            handler, arity = command
            count = len(argv)
            if count != arity and (arity > 0 or count < -arity):
                raise MiniError("ERR Wrong number of args calling Redis command from script")
            assert self._space is not None
            reply = handler(self._space, argv)
        except MiniError as error:
            return None, _ERROR, str(error).encode("utf-8", "surrogateescape")
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if reply is None:
            return False
        if type(reply) is Status:
            return None, _STATUS, bytes(reply)
        assert type(reply) is list
        if len(reply) > MOST_RETURNED or (reply and type(reply[-1]) is list):  # SCAN alone nests
            return self._table(reply)
        if None in reply:
            return True, *[False if item is None else item for item in reply]
        return True, *reply

    def _find(self, argv: tuple[bytes, ...]) -> Command:
        """Find a command whose name is not in capitals, or raise the reason why there is none."""
        if not argv:
            raise MiniError("ERR Please specify at least one argument for this redis lib call")
        name = argv[0].upper()
        if name in self._forbidden:
            raise MiniError("ERR This Redis command is not allowed from script")
        command = self._commands.get(name)
        if command is None:
            raise NotImplementedError(f"miniredis has no command {_text(name)}")
        self._commands[argv[0]] = command
        return command

    def _table(self, reply: list[Reply]) -> Any:
        return self._lua.table_from(
            self._table(item) if type(item) is list else False if item is None else item
            for item in reply
        )


def _spell(argv: tuple[Any, ...]) -> Arguments:
    """The arguments of a call as bytes; nothing, if only Lua can tell how a number is spelled."""
    spelt = []
    for name in argv:
        kind = type(name)
        if kind is bytes:
            spelt.append(name)
        elif kind is int and name and -(10**15) < name < 10**15:
            spelt.append(b"%d" % name)
        elif kind is int or kind is float:
            if name == 0 or name != name:
                return ()
            spelt.append(spelled(name))
        else:
            raise MiniError("ERR Lua redis lib command arguments must be strings or integers")
    return tuple(spelt)


def _read(flat: tuple[Any, ...]) -> Reply:
    """A stream as it comes from Lua: one list or one error."""
    if flat[1] == len(flat) - 2:
        return [_scalar(item) for item in flat[2:]]  # a list of scalars
    return _next(iter(flat))


def _next(stream: Iterator[Any]) -> Reply:
    item = next(stream)
    if item is not True:
        return _scalar(item)
    count = next(stream)
    if count < 0:
        return MiniError(_text(next(stream)))
    return [_next(stream) for _ in range(count)]


def _scalar(item: Any) -> int | bytes | None:
    if type(item) is float:
        # A cast in C: towards zero, and what does not fit becomes the smallest of all.
        return int(item) if SMALLEST <= item <= LARGEST else SMALLEST
    return None if item is False else item


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text).hexdigest().encode()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
