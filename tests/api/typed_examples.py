"""Examples for type checkers, never run: ``tests/api/test_types.py`` has mypy read this file.

A comment ``# E: code`` expects an error of that code in its line, ``# R: type`` a `reveal_type`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, reveal_type

import redis
import redis.asyncio

import lockfast
from lockfast import aio

client, tasks = lockfast.connect("memory://"), aio.connect("memory://")

# ---- options: unknown ones, and values of the wrong type -----------------------------------------

client.lock("a", timeout=3, lease=timedelta(seconds=5), renew=True, max_hold=9.5, fair=False)
client.lock("a", owner="me", label="nightly", layout="simple", warn_after=60, on_lost=None)
client.lock("a", tiemout=3)  # E: call-arg
tasks.lock("a", tiemout=3)  # E: call-arg
lockfast.lock("a", tiemout=3)  # E: call-arg
aio.lock("a", tiemout=3)  # E: call-arg
client.lock("a", timeout="3")  # E: arg-type
client.lock("a", fair=None)  # E: arg-type
client.lock(b"a")  # E: arg-type
client.lock("a").acquire(tiemout=3)  # E: arg-type
client.lock("a").try_acquire(lease=3)  # E: arg-type
client.semaphore("a", 3, owner="me")  # E: call-arg
client.semaphore("a", 3, fair=False, on_lost=print)
client.rwlock("a", layout="simple")  # E: call-arg
client.rwlock("a", owner=1).write().acquire(timeout=1)
client.multi_lock("a", client.lock("b"), timeout=3, owner=1)
client.multi_lock("a", tasks.lock("b"))  # E: arg-type
client.multi_lock("a", layout="simple")  # E: call-arg
client.permits("a", 3, lease=60, timeout=1)
client.permits("a", 3, renew=True)  # E: arg-type
client.latch("a", 3, keep=60, label="x")
client.barrier("a", 3, timeout=1)  # E: arg-type
client.election("a", metadata="x", tiemout=3)  # E: arg-type
lockfast.connect("memory://", leese=3)  # E: arg-type


def options(timeout: float) -> lockfast.LockOptions:
    return {"timeout": timeout, "label": "x"}


client.lock("a", **options(3))
lockfast.aio.lock("a", **aio.LockOptions(on_lost="flag"))

# ---- where the store is --------------------------------------------------------------------------

lockfast.connect()
lockfast.connect(None, namespace="x", lease=5, replicas="majority")
lockfast.connect(redis.Redis())
aio.connect(redis.asyncio.Redis())
lockfast.connect([redis.Redis(), redis.Redis(), redis.Redis()])
lockfast.connect(lambda: object())
lockfast.connect(5)  # E: arg-type
lockfast.connect(b"memory://")  # E: arg-type

# ---- what an acquire returns, and what on_lost gets ----------------------------------------------


def stop(hold: lockfast.Hold) -> None: ...


def stop_all(hold: lockfast.MultiHold) -> None: ...


def stop_task(hold: aio.Hold) -> None: ...


client.lock("a", on_lost=stop)
client.lock("a", on_lost=lambda hold: print(hold.fence))
client.lock("a", on_lost="flag")  # E: arg-type
client.lock("a", on_lost=stop_task)  # E: arg-type
client.lock("a", on_lost=5)  # E: arg-type
client.multi_lock("a", "b", on_lost=stop_all)
client.multi_lock("a", "b", on_lost=stop)  # E: arg-type
client.election("a", on_gained=stop, on_lost=stop)
tasks.lock("a", on_lost="flag")
tasks.lock("a", on_lost="flags")  # E: arg-type
tasks.lock("a", on_lost=stop_task)
reveal_type(client.lock("a").acquire())  # R: Hold
reveal_type(client.lock("a").try_acquire())  # R: Hold | None
reveal_type(client.multi_lock("a").try_acquire(timeout=3))  # R: MultiHold | None
reveal_type(client.permits("a", 3).acquire())  # R: str
reveal_type(client.transaction_lock("a", connection=object()))  # R: TransactionHold
reveal_type(tasks.transaction_lock("a", connection=object()))  # R: TransactionClaim
with client.lock("a") as held, client.multi_lock("a") as all_held:
    reveal_type(held)  # R: Hold
    reveal_type(all_held.fences)  # R: dict[str, int]


async def work(hold: aio.Hold) -> int:
    async with tasks.lock("a") as held, tasks.multi_lock("a") as all_held:
        reveal_type(held)  # R: Hold
        reveal_type(all_held)  # R: MultiHold
    reveal_type(await tasks.lock("a").try_acquire())  # R: Hold | None
    reveal_type(await tasks.inspect("a"))  # R: Snapshot
    return hold.fence


reveal_type(client.election("a").run(lambda hold: hold.fence))  # R: int
reveal_type(asyncio.run(tasks.election("a").run(work)))  # R: int

# ---- decorators ----------------------------------------------------------------------------------


@client.locked("order:{number}", timeout=3, kind="read")
def ship(number: int, *, fast: bool = False) -> str:
    return f"{number} {fast}"


@lockfast.locked("order:{number}", on_busy="skip", prefix="app")
def try_ship(number: int, *, fast: bool = False) -> str:
    return f"{number} {fast}"


@aio.locked("order:{number}", on_busy="skip", semaphore=3)
async def ship_soon(number: int) -> str:
    return str(number)


@client.once_every("1h", at_least=60)
def report(rows: list[int]) -> int:
    return len(rows)


@tasks.once_every(timedelta(hours=1))
async def report_soon() -> int:
    return 1


class Shop:
    @client.locked("shop:{self.number}", on_busy="skip")
    def close(self, when: str) -> bool:
        return bool(when)


reveal_type(ship(1, fast=True))  # R: str
reveal_type(try_ship(1))  # R: str | None
reveal_type(report([1]))  # R: int | None
reveal_type(Shop().close("now"))  # R: bool | None


async def call() -> None:
    reveal_type(await ship_soon(1))  # R: str | None
    reveal_type(await report_soon())  # R: int | None


try_ship("1")  # E: arg-type
report()  # E: call-arg
client.locked("a", tiemout=3)  # E: call-overload
aio.locked("a", tiemout=3)  # E: call-overload
lockfast.locked("a", on_busy="wait")  # E: call-overload
client.locked("a", kind="both")  # E: call-overload
client.once_every("1h", at_lest=3)  # E: call-arg


def of_any(hold: Any) -> None: ...


client.locked("a", on_lost=of_any)
