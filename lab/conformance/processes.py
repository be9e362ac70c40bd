"""Several processes: killed, stopped, forked and ended ones."""

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
    assert await world.blocking(partial(child.ask, "try_acquire", name="a")) is None
    child.tell("acquire", name="a", timeout=SOON)
    await world.until_waiting(client, "a", 1)
    await hold.release()
    fence = await world.blocking(child.heard)
    assert fence > hold.fence and await client.lock("a").try_acquire() is None
    (holder,) = (await client.inspect("a")).holders
    assert holder.who.pid == child.pid and holder.fence == fence
    await world.blocking(partial(child.ask, "release"))
    assert await client.lock("a").try_acquire() is not None


@case(processes=True, needs="arrival order")
async def test_waiters_of_several_processes_are_served_in_arrival_order(world: World) -> None:
    client = world.client()
    children = [world.child() for _ in range(3)]
    hold = await client.lock("a").acquire()
    for number, child in enumerate(children):
        child.tell("acquire", name="a", timeout=30)
        await world.until_waiting(client, "a", number + 1)
    pids = [waiter.who.pid for waiter in (await client.inspect("a")).waiters]
    assert pids == [child.pid for child in children]
    await hold.release()
    last = hold.fence
    for child in children:
        fence = await world.blocking(child.heard)
        assert fence > last
        last = fence
        (holder,) = (await client.inspect("a")).holders
        assert holder.who.pid == child.pid
        await world.blocking(partial(child.ask, "release"))


@case(processes=True)
async def test_what_a_killed_process_held_is_recovered(world: World) -> None:
    client, child = world.client(), world.child()
    fence = await world.blocking(partial(child.ask, "acquire", name="a", lease=2, renew=True))
    assert await client.lock("a").try_acquire() is None
    child.kill()
    killed = time.monotonic()
    hold = await client.lock("a", timeout=30).acquire()
    # Within 1.25 leases; a second more for a machine that is busy.
    assert time.monotonic() - killed < 2 * 1.25 + 1 and hold.fence > fence


@case(processes=True, needs="arrival order")
async def test_a_killed_waiter_is_passed_over(world: World) -> None:
    client, other = world.client(), world.client()
    children = [world.child() for _ in range(2)]
    hold = await client.lock("a").acquire()
    for number, child in enumerate(children):
        child.tell("acquire", name="a", timeout=60)
        await world.until_waiting(client, "a", number + 1)

    async def wait() -> int:
        async with other.lock("a", timeout=60) as mine:
            return mine.fence

    waiter = world.spawn(wait)
    await world.until_waiting(client, "a", 3)
    children[0].kill()
    await hold.release()
    # At worst one first lease passes for the dead one, and its place a little later.
    fence = await world.blocking(children[1].heard)
    assert fence > hold.fence, "the order of the living is kept"
    assert not waiter.done
    await world.blocking(partial(children[1].ask, "release"))
    assert await waiter.join(30) > fence


@case(processes=True)
async def test_a_process_stopped_beyond_its_lease_has_lost_and_its_fence_is_old(
    world: World,
) -> None:
    client, child = world.client(), world.child()
    fence = await world.blocking(partial(child.ask, "acquire", name="a", lease=0.8, renew=True))
    child.stop()
    hold = await client.lock("a", timeout=30).acquire()
    assert hold.fence > fence, "a resource could not tell the stale writer from the new one"
    child.go_on()
    state = await world.blocking(partial(child.ask, "state"))
    assert state == {"is_held": False, "lost": True, "fence": fence}
    with raises(Refused, "HoldLost"):
        await world.blocking(partial(child.ask, "release"))
    assert hold.is_held
    assert await world.blocking(partial(child.ask, "try_acquire", name="a")) is None
    await hold.release()


@case(processes=True)
async def test_a_hold_goes_to_another_process_and_back(world: World) -> None:
    client, child = world.client(), world.child()
    hold = await client.lock("a").acquire()
    text = await hold.detach()
    assert await world.blocking(partial(child.ask, "attach", name="a", text=text)) == hold.fence
    (holder,) = (await client.inspect("a")).holders
    assert holder.who.pid == child.pid
    await client.close()  # what we held before is no more ours to release
    client = world.client()
    assert await client.lock("a").try_acquire() is None
    text = await world.blocking(partial(child.ask, "detach"))
    child.kill()
    assert await client.lock("a").try_acquire() is None, "it died with a process that had let go"
    back = await client.attach("a", text)
    assert back.fence == hold.fence and back.is_held
    await back.release()


@case(processes=True)
async def test_an_operator_breaks_the_hold_of_another_process(world: World) -> None:
    client, child = world.client(), world.child()
    fence = await world.blocking(partial(child.ask, "acquire", name="a", lease=0.9, renew=True))
    assert await client.break_hold("a", fence)
    hold = await client.lock("a").acquire(timeout=SOON)

    async def told() -> bool:
        state = await world.blocking(partial(child.ask, "state"))
        return bool(state["lost"])

    await world.until(told)
    with raises(Refused, "HoldLost"):
        await world.blocking(partial(child.ask, "release"))
    assert hold.is_held


@case()
async def test_a_fork_holds_nothing_and_its_exit_releases_nothing(world: World) -> None:
    seen = await world.blocking(partial(_program, "fork", world))
    child, parent = seen["child"], seen["parent"]
    assert child["is_held"] is False and child["lock.is_held"] is False
    assert child["check"] == child["release"] == "HoldLost"
    assert child["afresh"] is True, "the child could not lock another name"
    assert child["statistics"] == [0, 0], "the child counts what its parent did"
    assert parent["child's exit code"] == 0 and parent["is_held"] is True
    assert parent["release"] == "released" and parent["kept"] is True
    if seen["across"] != "process":
        assert child["same name"] == "busy" and parent["holder"] == "parent"
        assert child["waited"] > parent["fence"], "the child gets it when the parent lets go"


@case()
async def test_what_is_still_held_when_the_program_ends_is_released(world: World) -> None:
    for ending in ("returns", "sys.exit", "raises"):
        seen = await world.blocking(partial(_program, ending, world))
        assert seen["at exit"] == [] and seen["took"] < 1, (ending, seen)
        assert seen["stderr"] == ("" if ending != "raises" else "ZeroDivisionError: mine"), seen
        assert seen["exit code"] == {"returns": 0, "sys.exit": 3, "raises": 1}[ending]


@case()
async def test_what_is_held_by_nobody_any_more_is_released_when_the_program_ends(
    world: World,
) -> None:
    """The client, the lock and the hold are garbage, but not what they hold."""
    seen = await world.blocking(partial(_program, "dropped", world))
    assert seen["at exit"] == [] and seen["stderr"] == "" and seen["exit code"] == 0, seen


@case()
async def test_a_program_that_is_told_to_terminate_releases_and_says_nothing(
    world: World,
) -> None:
    for position in ("body", "waiting"):
        seen = await world.blocking(partial(_program, f"sigterm-{position}", world))
        assert seen["at exit"] == [] and seen["took"] < 1, (position, seen)
        assert seen["stderr"] == "" and seen["exit code"] == 0, (position, seen)


@case()
async def test_an_end_while_others_still_wait_does_not_hang(world: World) -> None:
    seen = await world.blocking(partial(_program, "waiters", world))
    assert seen["at exit"] == [] and seen["took"] < 1 and seen["stderr"] == "", seen


# Runs first, so that at the end it runs last: after lockfast has cleaned up.
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


def _program(what: str, world: World) -> dict[str, Any]:
    """Run one of `programs` to its end; all that it said, and how it ended."""
    done = subprocess.run(
        [sys.executable, "-c", _BOOT, what, world.api, world.url],
        capture_output=True,
        text=True,
        env=child_environment(),
        timeout=60,
    )
    seen: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        seen.update(json.loads(line))
    lines = done.stderr.strip().splitlines()
    seen["stderr"] = lines[-1] if what == "raises" and lines else done.stderr
    seen["exit code"] = done.returncode
    assert "at exit" in seen or what == "fork", done.stderr
    return seen
