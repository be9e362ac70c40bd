"""Conversions between Lua and MiniRedis are those of a real Redis: edge cases, one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from both_redises import Both

from lab.miniredis import MiniError, MiniRedis

RETURNED = """
return 3.99
return -3.99
return 0.5
return -0
return 1e30
return -1e30
return 2^63
return -2^63
return 2^62
return 2^53 + 1
return 0/0
return 1/0
return 10/2
return '1' + 1
return 1763258400123456
return 1763258400123456.75
return {1763258400123456, 1763258400123456 + 1, 2^31, -2^31 - 1}
return tostring(1763258400123456)
return 1763258400123456 .. ''
return tostring(123456789012345) .. ' ' .. 0.1 .. ' ' .. 100 .. ' ' .. 1e15 .. ' ' .. -0
return string.format('%.0f', 1763258400123456)
return string.format('%d', 1763258400123456)
return string.format('%.0f', tonumber('1763258400123456') + 1)
return tonumber('0x10') + tonumber('  7  ') + tonumber('11', 2)
return {tonumber('x') == nil, tonumber('') == nil, tonumber('1e2'), tonumber(ARGV[1]) == nil}
return true
return false
return nil
return
local x
return {1, nil, 2}
return {nil, 1}
return {1, false, 2, true}
return {false}
return {}
return {{}}
return {{}, {{}, {1.5, 'a', {}}}, 'x'}
return {1, {2, nil, 3}, {4, {5}}}
return {a = 1}
return {1, a = 2, 3}
return {1, function() end, 2}
return function() end
return 1, 2
return {1.5, -1.5, 'a', 2^40}
return {[1] = 'a', [2] = 'b', [4] = 'd'}
return {ok = 'fine'}
return {ok = ''}
return {ok = 1}
return {ok = 'two\\r\\nlines'}
return {ok = 'a', err = 'B b'}
return {err = 'MY error'}
return {err = 'x'}
return {err = ''}
return {err = 1}
return {err = 'two\\r\\nlines'}
return {1, {ok = 'in'}, {err = 'MY in'}, 2}
return {err = 'MY error', 1, 2}
return redis.status_reply('fine')
return redis.status_reply('fine').ok
return redis.status_reply(1)
return redis.status_reply()
return redis.error_reply('MY own error')
return redis.error_reply('word')
return redis.error_reply('-word')
return redis.error_reply('-MY own error')
return redis.error_reply('-MY own error').err
return redis.error_reply('')
return redis.error_reply('-')
return redis.error_reply('a ')
return redis.error_reply(5)
return redis.error_reply('a', 'b')
return redis.sha1hex('')
return redis.sha1hex('a\\0b')
return redis.sha1hex(12)
return redis.sha1hex()
return 'a\\0b\\255'
return {'ä', #'ä', '\\195\\164' == 'ä'}
return string.char(0, 127, 128, 255)
return string.rep('ä', 3) .. string.upper('abc') .. string.sub('hello', -3, -2)
return {string.find('a.b', '.', 1, true), string.match('k=v', '(%w)=(%w)')}
return {string.byte('az', 1, 2)}
return ('x'):rep(3) .. (('a,b'):gsub(',', ';'))
return {math.floor(-1.5), math.ceil(1.2), math.max(1, 7, 3), math.min(4, 2), math.abs(-3)}
return {7 % 3, -7 % 3, 7.5 % 2}
return {math.huge, -math.huge, math.fmod(-7, 3), math.pi}
return table.concat({1, 2, 3.5, 'x'}, ',')
local t = {3, 1, 2} table.sort(t) table.insert(t, 9) table.remove(t, 1) return t
return {unpack({1, 2, 3})}
return {select('#', 1, nil, nil), select(2, 'a', 'b')}
return {#KEYS, #ARGV, KEYS[1], ARGV[1], type(KEYS[2]), type(ARGV[9])}
return {KEYS, ARGV}
KEYS[1] = 'other' return KEYS
return {next({}) == nil, rawequal('a', 'a'), rawget({5}, 1), type(rawset({}, 1, 2))}
return _VERSION
return {pcall(function() return 1, 2 end)}
return {pcall(error, 'x')}
return {pcall(error, {err = 'MY x'})}
return {pcall(error, {err = 5})}
return type(select(2, pcall(error, {a = 1})))
return select('#', pcall(function() end))
return {pcall(error)}
local ok, e = pcall(function() error('here') end) return e
local ok, e = pcall(function() local t = nil; return t.x end) return e
local n = 0 for k, v in pairs({1, 2, a = 3}) do n = n + v end return n
local n = 0 for i, v in ipairs({1, 2, nil, 4}) do n = n + v end return n
"""

CALLED = """
return redis.call('SET', 'n', 5)
return redis.call('SET', 'n', 5).ok
return redis.call('GET', 'nothing') == false
return type(redis.call('GET', 'nothing'))
return redis.call('HMGET', 'nothing', 'a', 'b')
return #redis.call('HMGET', 'nothing', 'a', 'b')
return redis.call('HGETALL', 'nothing')
return redis.call('TYPE', 'string')
return redis.call('TYPE', 'string')['ok']
return type(redis.call('INCR', 'i'))
return redis.call('INCR', 'i') + 0.9
return redis.call('GET', 'string') .. '!'
return redis.call('get', 'string')
return redis.call('Get', 'string')
return redis.call('PING')
return redis.call('PING', 'x')
return redis.call('EXISTS', 'string', 'string', 'hash', 'zset', 'nothing')
return redis.call('HGETALL', 'hash')
return redis.call('ZRANGE', 'zset', 0, -1, 'WITHSCORES')
return redis.call('ZSCORE', 'zset', 'm') + 1
return redis.call('SCAN', 0, 'TYPE', 'hash')
return #redis.call('SCAN', 0, 'COUNT', 100)[2]
return redis.call('HINCRBY', 'hash', 'big', 1763258400123456)
return redis.call('HINCRBY', 'hash', 'big', 9007199254740991) + 1
return redis.call('HGET', 'hash', 'big')
return redis.call('HGET', 'string', 'f')
return redis.pcall('HGET', 'string', 'f')
return redis.pcall('HGET', 'string', 'f').err
return {1, redis.pcall('HGET', 'string', 'f'), 2}
return type(redis.pcall('HGET', 'string', 'f'))
return {pcall(redis.call, 'HGET', 'string', 'f')}
return {pcall(redis.pcall, 'GET', 'string')}
local ok, e = pcall(redis.call, 'HGET', 'string', 'f') error(e)
local r = redis.pcall('HGET', 'string', 'f') error(r)
local r = redis.pcall('HGET', 'string', 'f') return redis.error_reply(r.err)
redis.call('SET', 'half', 'done') redis.call('HGET', 'half', 'f') redis.call('DEL', 'half')
return redis.call('GET', 'half')
return redis.call()
return redis.pcall()
return redis.call({})
return redis.call('GET', {1})
return redis.call('GET', true)
return redis.call('GET', nil)
return redis.call('GET', print == nil)
return redis.call('GET', 'string', nil)
return redis.pcall('SET', 'n', {}).err
return redis.call('GET')
return redis.pcall('GET', 'a', 'b')
return redis.pcall('HSET', 'hash', 'a', 1, 'b')
return redis.call('EVAL', 'return 1', 0)
return redis.call('eval', 'return 1', 0)
return redis.pcall('EVALSHA', 'x', 0)
return redis.call('SCRIPT', 'FLUSH')
return redis.call('SET', 'n', 1, 'PX', 1.5)
return redis.call('SET', 'n', 1, 'PX', 0)
return redis.call('PEXPIRE', 'string', 1e15)
return redis.call('PEXPIRE', 'string', 1e17)
return redis.call('PERSIST', 'string')
return redis.call('PUBLISH', 'c', 'm')
local call = redis.call return call('GET', 'string')
for i = 1, 50 do redis.call('INCR', 'loop') end return redis.call('GET', 'loop')
return redis.call('SET', ARGV[2], ARGV[3]) and redis.call('GET', ARGV[2])
"""

FORBIDDEN = """
x = 1
return x
return x == nil
local function f() y = 1 end f()
_G.x = 1
return _G.x
rawset(_G, 'x', 1)
setmetatable(_G, {})
KEYS = {}
redis = nil
redis.call = 1
redis.more = 1
string.more = 1
table.insert = nil
math.pi = 3
return string.more
return print('x')
return os.time()
return io.open('x')
return require('x')
return dofile('x')
return getfenv(1)
return setfenv(1, {})
return debug.traceback()
return python
error('boom')
error('boom', 0)
error({err = 'MY boom'})
error({err = 'boom'})
error(5)
error()
error('two\\r\\nlines')
return nil + 1
return {} .. 'x'
return #nil
local t = nil return t.x
assert(false, 'no')
assert(nil)
return redis.nothing('x')
return (
return 'unfinished
"""

NUMBERS = [
    "0",
    "-0",
    "1",
    "-1",
    "0.1",
    "1/3",
    "1.5",
    "-1.5e300",
    "5e-324",
    "1e15+0.5",
    "123456789.123",
]
NUMBERS += ["1763258400123456", "2^53", "2^53+2", "2^62", "2^63", "-2^63", "2^64", "1e15", "1e16"]
NUMBERS += ["1e17", "1e18", "1e20", "1e21", "99999999999999999", "0.1+0.2", "1/0", "-1/0", "0/0"]
NUMBERS += ["-(0/0)", "100", "1e2", "-0.5", "2^31", "1e-5", "123456789012345678", "0x10", "-1e15"]


@pytest.fixture(scope="module")
def both(redis_port: int) -> Iterator[Both]:
    pair = Both(redis_port)
    yield pair
    pair.real.close()


def lines(block: str) -> list[str]:
    return block.strip("\n").split("\n")


@pytest.mark.parametrize("source", lines(RETURNED))
def test_a_value_is_returned_as_redis_returns_it(both: Both, source: str) -> None:
    both.agree(("EVAL", source, 1, "k\x00ä", "a\x00", b"\xff\xfe", ""))


def test_commands_in_scripts_are_answered_as_in_redis(both: Both) -> None:
    both.agree(
        ("FLUSHALL",),
        ("SET", "string", "value"),
        ("HSET", "hash", "a", 1, "b", "2"),
        ("ZADD", "zset", "1.5", "m", 2, "n"),
    )
    for source in lines(CALLED):
        both.agree(("EVAL", source, 0, "", b"\x00key\xff", b"\r\n\x00\xff"))
    both.agree_on_all()


@pytest.mark.parametrize("source", lines(FORBIDDEN))
def test_a_script_that_redis_refuses_is_refused(both: Both, source: str) -> None:
    [theirs] = both.agree(("EVAL", source, 0))
    assert isinstance(theirs, MiniError) or source == "return string.more"
    both.agree(("EVAL", "return {redis.call('PING'), math.pi, string.more == nil}", 0))


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_spelled_as_redis_spells_it(both: Both, number: str) -> None:
    both.agree(
        ("EVAL", f"return redis.call('PING', {number})", 0),
        ("EVAL", f"return {{redis.call('HSET', 'k1', {number}, {number}, 'x', 1)}}", 0),
        ("EVAL", f"return {{{number}, tostring({number}), {number} .. '', {number}}}", 0),
        ("EVAL", f"return redis.pcall('ZADD', 'k2', {number}, 'm{number}')", 0),
        ("EVAL", f"return redis.pcall('PEXPIRE', 'nothing', {number})", 0),
        ("HGETALL", "k1"),
        ("ZRANGE", "k2", 0, -1, "WITHSCORES"),
    )


def test_an_error_without_text_is_an_error(mini: MiniRedis) -> None:
    # `error({})` crashes Redis 7.0.15, so it runs on MiniRedis only.
    with pytest.raises(MiniError, match=r"^ERR "):
        mini.eval("error({})", [], [])


def test_a_lua_library_that_miniredis_lacks_is_an_error(mini: MiniRedis) -> None:
    for name in ("cjson", "cmsgpack", "struct", "bit", "loadstring", "xpcall", "coroutine"):
        with pytest.raises(MiniError, match=f"nonexistent global variable '{name}'"):
            mini.eval(f"return {name}", [], [])
    with pytest.raises(MiniError, match="attempt to call field 'random'"):
        mini.eval("return math.random()", [], [])


@pytest.fixture
def mini() -> MiniRedis:
    return MiniRedis(lambda: 0, lambda channel, message: 0)
