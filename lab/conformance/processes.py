"""Locks of several processes that are killed, paused, forked or that end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from typing import Any

from lab.conformance.cases import case, raises
from lab.conformance.children import Refused, child_environment
from lab.conformance.concurrency import SOON
from lab.conformance.worlds import World


@case(processes=True)
async def test_processes_exclude_each_other(world: World) -> None:
    client, child = world.client(), world.child()
    hold = await client.lock("a").acquire()
    assert await world.blocking(partial(child.call, "try_acquire", name="a")) is None
    child.send("acquire", name="a", timeout=SOON)
    await world.until_waiting(client, "a", 1)
    await hold.release()
    fence = await world.blocking(child.receive)
    assert fence > hold.fence and await client.lock("a").try_acquire() is None
    (holder,) = (await client.inspect("a")).holders
    assert holder.who.pid == child.pid and holder.fence == fence
    await world.blocking(partial(child.call, "release"))
    assert await client.lock("a").try_acquire() is not None


@case(processes=True, needs="arrival order")
async def test_waiters_of_several_processes_are_served_in_arrival_order(world: World) -> None:
    client = world.client()
    children = [world.child() for _ in range(3)]
    hold = await client.lock("a").acquire()
    for number, child in enumerate(children):
        child.send("acquire", name="a", timeout=30)
        await world.until_waiting(client, "a", number + 1)
    pids = [waiter.who.pid for waiter in (await client.inspect("a")).waiters]
    assert pids == [child.pid for child in children]
    await hold.release()
    last = hold.fence
    for child in children:
        fence = await world.blocking(child.receive)
        assert fence > last
        last = fence
        (holder,) = (await client.inspect("a")).holders
        assert holder.who.pid == child.pid
        await world.blocking(partial(child.call, "release"))


@case(processes=True)
async def test_the_lock_of_a_killed_process_becomes_free(world: World) -> None:
    client, child = world.client(), world.child()
    fence = await world.blocking(partial(child.call, "acquire", name="a", lease=2, renew=True))
    assert await client.lock("a").try_acquire() is None
    child.kill()
    killed = time.monotonic()
    hold = await client.lock("a", timeout=30).acquire()
    # Within 1.25 leases; a second more for a machine that is busy.
    assert time.monotonic() - killed < 2 * 1.25 + 1 and hold.fence > fence


@case(processes=True, needs="arrival order")
async def test_a_killed_waiter_is_skipped(world: World) -> None:
    client, other = world.client(), world.client()
    children = [world.child() for _ in range(2)]
    hold = await client.lock("a").acquire()
    for number, child in enumerate(children):
        child.send("acquire", name="a", timeout=60)
        await world.until_waiting(client, "a", number + 1)

    async def wait() -> int:
        async with other.lock("a", timeout=60) as mine:
            return mine.fence

    waiter = world.spawn(wait)
    await world.until_waiting(client, "a", 3)
    children[0].kill()
    await hold.release()
    # At worst the dead waiter is granted a first lease that must end, and is then removed.
    fence = await world.blocking(children[1].receive)
    assert fence > hold.fence, "the remaining waiters were served out of order"
    assert not waiter.done
    await world.blocking(partial(children[1].call, "release"))
    assert await waiter.join(30) > fence


@case(processes=True)
async def test_a_process_paused_beyond_its_lease_has_lost_its_hold_and_its_fence_is_stale(
    world: World,
) -> None:
    client, child = world.client(), world.child()
    fence = await world.blocking(partial(child.call, "acquire", name="a", lease=0.8, renew=True))
    child.pause()
    hold = await client.lock("a", timeout=30).acquire()
    assert hold.fence > fence, "a resource could not distinguish the stale writer from the new one"
    child.resume()
    state = await world.blocking(partial(child.call, "state"))
    assert state == {"is_held": False, "lost": True, "fence": fence}
    with raises(Refused, "HoldLost"):
        await world.blocking(partial(child.call, "release"))
    assert hold.is_held
    assert await world.blocking(partial(child.call, "try_acquire", name="a")) is None
    await hold.release()


@case(processes=True)
async def test_a_hold_can_be_handed_to_another_process_and_back(world: World) -> None:
    client, child = world.client(), world.child()
    hold = await client.lock("a").acquire()
    text = await hold.detach()
    assert await world.blocking(partial(child.call, "attach", name="a", text=text)) == hold.fence
    (holder,) = (await client.inspect("a")).holders
    assert holder.who.pid == child.pid
    await client.close()  # the hold is not ours to release any more
    client = world.client()
    assert await client.lock("a").try_acquire() is None
    text = await world.blocking(partial(child.call, "detach"))
    child.kill()
    assert await client.lock("a").try_acquire() is None, "the detached hold ended with its process"
    back = await client.attach("a", text)
    assert back.fence == hold.fence and back.is_held
    await back.release()


@case(processes=True)
async def test_an_operator_breaks_the_hold_of_another_process(world: World) -> None:
    client, child = world.client(), world.child()
    fence = await world.blocking(partial(child.call, "acquire", name="a", lease=0.9, renew=True))
    assert await client.break_hold("a", fence)
    hold = await client.lock("a").acquire(timeout=SOON)

    async def is_lost() -> bool:
        state = await world.blocking(partial(child.call, "state"))
        return bool(state["lost"])

    await world.until(is_lost)
    with raises(Refused, "HoldLost"):
        await world.blocking(partial(child.call, "release"))
    assert hold.is_held


@case()
async def test_a_forked_child_holds_nothing_and_its_exit_releases_nothing(world: World) -> None:
    report = await world.blocking(partial(_program, "fork", world))
    child, parent = report["child"], report["parent"]
    assert child["is_held"] is False and child["lock.is_held"] is False
    assert child["check"] == child["release"] == "HoldLost"
    assert child["new hold"] is True, "the child could not lock another name"
    assert child["statistics"] == [0, 0], "the child inherited the counters of its parent"
    assert parent["child's exit code"] == 0 and parent["is_held"] is True
    assert parent["release"] == "released" and parent["kept"] is True
    if report["across"] != "process":
        assert child["same name"] == "busy" and parent["holder"] == "parent"
        assert child["waited"] > parent["fence"], "the child did not get it after its parent"


@case()
async def test_a_program_that_ends_releases_the_locks_it_still_holds(world: World) -> None:
    for ending in ("returns", "sys.exit", "raises"):
        report = await world.blocking(partial(_program, ending, world))
        assert report["at exit"] == [] and report["took"] < 1, (ending, report)
        stderr = "ZeroDivisionError: mine" if ending == "raises" else ""
        assert report["stderr"] == stderr, report
        assert report["exit code"] == {"returns": 0, "sys.exit": 3, "raises": 1}[ending]


@case()
async def test_the_locks_of_a_garbage_collected_client_are_released_when_the_program_ends(
    world: World,
) -> None:
    """The client, the lock and the hold are unreferenced, but the store still has the claim."""
    report = await world.blocking(partial(_program, "unreferenced", world))
    assert report["at exit"] == [] and report["stderr"] == "", report
    assert report["exit code"] == 0, report


@case()
async def test_a_program_that_exits_on_sigterm_releases_its_locks_and_prints_nothing(
    world: World,
) -> None:
    for position in ("body", "waiting"):
        report = await world.blocking(partial(_program, f"sigterm-{position}", world))
        assert report["at exit"] == [] and report["took"] < 1, (position, report)
        assert report["stderr"] == "" and report["exit code"] == 0, (position, report)


@case()
async def test_a_program_that_ends_while_its_threads_or_tasks_wait_does_not_hang(
    world: World,
) -> None:
    report = await world.blocking(partial(_program, "waiters", world))
    assert report["at exit"] == [] and report["took"] < 1 and report["stderr"] == "", report


# Registered before lockfast is imported, so that it runs last: after lockfast has cleaned up.
_BOOT = """
import atexit, json, sys, time
ending = []
def at_exit():
    import lockfast
    took = time.monotonic() - ending[0]
    with lockfast.connect(sys.argv[3]) as client:
        print(json.dumps({"at exit": client.names(), "took": took}), flush=True)
if sys.argv[1] != "fork":
    atexit.register(at_exit)
from lab.conformance import programs
programs.main(ending, *sys.argv[1:])
"""


def _program(program: str, world: World) -> dict[str, Any]:
    """Run one of `programs` to its end; return its reports, its errors and its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", _BOOT, program, world.api, world.url],
        capture_output=True,
        text=True,
        env=child_environment(),
        timeout=60,
    )
    report: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        report.update(json.loads(line))
    lines = done.stderr.strip().splitlines()
    report["stderr"] = lines[-1] if program == "raises" and lines else done.stderr
    report["exit code"] = done.returncode
    assert "at exit" in report or program == "fork", done.stderr
    return report
