"""`lockfast ls`, `show`, `break` and `watch`: look at holds, and break them.

Compare and break: between looking and breaking, the lock may have passed to another holder, which
must not be broken. So the request carries the fence that was seen, and the store compares and
breaks in one step. --fence may be omitted only on a terminal and with exactly one holder: then the
holder and its fence are shown, and "yes" refers to that hold. A script must pass the fence.

A store notifies waiters of a release, not observers, so watching means inspecting several times a
second. Changes between two inspections that cancel out are missed. A hold that is gone was released
or broken, or its holder died: these look the same, unless its lease had expired.
"""

from __future__ import annotations

import argparse
import json
import select
import signal
import sys
import time
from typing import Never

from lockfast.cli import escaped, room, shell_quoted, table
from lockfast.cli import main as cli
from lockfast.cli.admin import (
    Address,
    Admin,
    Event,
    Inspection,
    Watch,
    about_break,
    administer,
    describe,
    lease_left,
    moment,
)
from lockfast.cli.main import exits, fail, option, print_stderr, switch, verb
from lockfast.errors import BackendError, ConfigurationError
from lockfast.model import Holder

LIMIT = 1000
NAMES = ("NAMESPACE…", "NAME…", "KIND", "HOLDER…", "HELD FOR>", "LEASE>", "WAITERS>")
LS_EPILOG = f"""\
columns:
  KIND      kind, and how much of it is taken: lock, semaphore 3/5, rwlock 2 read, rwlock write,
            latch 1/3, barrier 2/3; once for a periodic job of @once_every
  HOLDER    host:pid and label, or thread or task if there is no label; +2 means two more holders;
            for once: the process that ran the job last
  HELD FOR  how long the first holder has held it
  LEASE     how long the hold still lasts if it is not renewed; for once: until the next run
  WAITERS   number of waiters in the queue

examples:
  lockfast ls
  lockfast ls orders: --url redis://localhost:6379/0
  lockfast ls --all-namespaces --json | jq -r '.names[] | select(.waiters != []) | .name'

{exits("done, even if nothing is held")}"""


AT_MOST = f"list at most N names (default: {LIMIT})"
LIMITED = option("--limit", type=int, default=LIMIT, metavar="N", help=AT_MOST)


@verb(
    "List the names that are held or waited for, with their holders.",
    LS_EPILOG,
    [*cli.names("list"), LIMITED, cli.WIDE, cli.JSON, *cli.store()],
)
def ls(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise ConfigurationError(f"--limit {args.limit}: must be at least 1")
    with administer(args) as admin:
        addresses = admin.addresses(args.prefix, everywhere=args.all_namespaces)
        inspections = [admin.inspect(address) for address in addresses[: args.limit]]
    left_out = max(len(addresses) - args.limit, 0)
    # A name may have been released since the listing.
    inspections = [inspection for inspection in inspections if not inspection.is_free]
    if args.json:
        found = [inspection.document() for inspection in inspections]
        about = {"store": admin.store, "at": moment(time.time()), "left_out": left_out}
        print(json.dumps({**about, "names": found}, indent=2))
    elif inspections:
        rows = [_name_row(inspection, everywhere=args.all_namespaces) for inspection in inspections]
        print(*table(NAMES, rows, room(wide=args.wide)), sep="\n")
    if left_out:
        print_stderr(f"{left_out} more are not shown: pass a PREFIX, or a greater --limit")
    if not inspections and not args.json:
        prefix = f" whose name begins with {args.prefix!r}" if args.prefix else ""
        where = "" if args.all_namespaces else f" in namespace {admin.namespace}"
        print_stderr(f"nothing is held or waited for on {admin.store}{where}{prefix}")
    return 0


def _name_row(inspection: Inspection, *, everywhere: bool) -> list[str]:
    address, snapshot = inspection
    first = snapshot.holders[0] if snapshot.holders else None
    return [
        address.namespace if everywhere else "",
        escaped(address.name),
        inspection.kind_cell,
        inspection.holder_cell,
        inspection.age(first) if first else "-",
        lease_left(first) if first else "-",
        str(len(snapshot.waiters)),
    ]


HOLDERS = ("HOLDER…", "TAKES>", "FENCE>", "HELD FOR>", "LEASE>")
WAITERS = ("POSITION>", "WAITER…", "TAKES>", "ORDER", "WAITING>")
SHOW_EPILOG = f"""\
columns:
  TAKES     slots of a semaphore, or read or write
  FENCE     number that grows with every hold; lockfast break needs it
  LEASE     how long the hold still lasts if it is not renewed. A live holder renews after a third
            of its lease; if LEASE falls to zero, the holder is dead, paused or disconnected
  POSITION  in the queue; position 1 is served next
  ORDER     fair: in order of arrival; any: as soon as it fits, ahead of others if need be
  WAITING   how long it has waited

examples:
  lockfast show nightly-report
  lockfast show nightly-report --json | jq .holders[0].fence
  lockfast show refresh-rates --once

{exits("done, even if the name is free")}"""


@verb(
    "Show the holders of a name, their fences and leases, and the waiters in order.",
    SHOW_EPILOG,
    [cli.NAME, cli.WIDE, cli.ONCE, cli.JSON, *cli.store()],
)
def show(args: argparse.Namespace) -> int:
    with administer(args) as admin:
        inspection = admin.inspect(admin.address(args.name, once=args.once))
    if args.json:
        print(json.dumps({"store": admin.store, **inspection.document()}, indent=2))
        return 0
    print(_headline(inspection, admin))
    for lines in (_holders(inspection, args.wide), _waiters(inspection, args.wide)):
        if lines:
            print("", *lines, sep="\n")
    if inspection.snapshot.holders:
        command = _break_command(inspection.address, inspection.snapshot.holders[0].fence)
        print(f"\nTo break a hold: {command}")
    return 0


def _headline(inspection: Inspection, admin: Admin) -> str:
    """Format the name, its kind, slots taken, number of waiters, namespace and store."""
    address, snapshot = inspection
    where = f"(namespace {address.namespace}, {escaped(admin.store)})"
    if inspection.is_free:
        return f"{escaped(address.name)}: free, no holders, no waiters {where}"
    kind, size = inspection.kind_and_size
    if address.once:
        state = "runs once per period"
    elif size is None:
        state = f"{kind}, {inspection.kind_cell.removeprefix('rwlock').strip() or 'free'}"
    else:
        state = (
            f"{kind}, {inspection.taken} of {size} {'arrived' if kind == 'barrier' else 'taken'}"
        )
    waiting = f", {len(snapshot.waiters)} waiting" if snapshot.waiters else ""
    return f"{escaped(address.name)}: {state}{waiting} {where}"


def _holders(inspection: Inspection, wide: bool) -> list[str]:
    snapshot = inspection.snapshot
    rows = []
    for one in snapshot.holders:
        takes, held = inspection.takes(one), inspection.age(one)
        rows.append([describe(one.who), takes, str(one.fence), held, lease_left(one)])
    return table(HOLDERS, rows, room(wide=wide)) if rows else []


def _waiters(inspection: Inspection, wide: bool) -> list[str]:
    snapshot = inspection.snapshot
    has_unfair = any(not waiter.fair for waiter in snapshot.waiters)
    rows = []
    for position, one in enumerate(snapshot.waiters, 1):
        order = ("fair" if one.fair else "any") if has_unfair else ""
        takes, waiting = inspection.takes(one), inspection.age(one)
        rows.append([str(position), describe(one.who), takes, order, waiting])
    return table(WAITERS, rows, room(wide=wide)) if rows else []


def _break_command(address: Address, fence: int) -> str:
    """Command line that breaks this hold, without the URL, which may contain a password."""
    command = ["lockfast", "break", shell_quoted(address.name), "--fence", str(fence)]
    if address.once:
        command.append("--once")
    if address.namespace != "default":
        command += ["--namespace", address.namespace]
    return " ".join(command)


POLL = 0.2
WHICH = "fence of the hold to break (see lockfast show)"
FENCE = option("--fence", type=int, metavar="N", help=WHICH)
YES = switch("--yes", help="break without asking")
NOTHING = "  1    nothing was broken: the lock is free or has another fence, or you answered no\n"
BREAK_EPILOG = f"""\
The holder is not asked. If it is alive, it continues until its next renewal, a third of its lease
later, reports the loss. Until then two processes may be at work, and only the fence protects what
they write to: the next holder has a greater one. So stop the holder first if you can, and break
holds of dead or hanging processes.

`lockfast show NAME` prints the fence. If another hold has replaced it by now, nothing is
broken. On a terminal you are shown the holder and asked; with a single holder --fence may be
omitted. Without a terminal, pass --fence and --yes.

examples:
  lockfast break nightly-report --fence 1763282507123456
  lockfast break nightly-report --fence 1763282507123456 --yes
  lockfast break refresh-rates --once        let the job run again in this period

{exits("broken", NOTHING)}"""


@verb(
    "Break a hold on a name, if it still has this fence.",
    BREAK_EPILOG,
    [cli.NAME, FENCE, YES, cli.ONCE, cli.JSON, *cli.store()],
)
def break_hold(args: argparse.Namespace) -> int:
    asks = not args.yes
    if asks and not (sys.stdin.isatty() and sys.stdout.isatty()):
        return fail("there is no terminal to ask on: add --yes to break without asking", cli.USAGE)
    if asks and args.json:
        return fail("--json does not ask: add --yes", cli.USAGE)
    if not asks and args.fence is None:
        return fail("--yes needs --fence: the fence that lockfast show prints", cli.USAGE)
    with administer(args) as admin:
        inspection = admin.inspect(admin.address(args.name, once=args.once))
        holders = inspection.snapshot.holders
        found = [holder for holder in holders if args.fence in (None, holder.fence)]
        if len(found) != 1:
            return _no_such_hold(inspection, args.fence)
        if asks and not _confirmed(inspection, admin, found[0]):
            return fail("nothing was broken", cli.NO)
        return _break(admin, inspection, found[0], args.json)


def _no_such_hold(inspection: Inspection, fence: int | None) -> int:
    name = escaped(inspection.address.name)
    current = inspection.snapshot.holders
    if not current:
        return fail(f"{name}: not held, nothing was broken", cli.NO)
    fences = ", ".join(f"{holder.fence} ({holder.who})" for holder in current[:5])
    if fence is None:
        return fail(f"{name}: {len(current)} holders, choose one with --fence: {fences}", cli.USAGE)
    why = f"no hold has fence {fence}, nothing was broken; current fence: {fences}"
    return fail(f"{name}: {why}", cli.NO)


def _confirmed(inspection: Inspection, admin: Admin, holder: Holder) -> bool:
    print(_headline(inspection, admin), "", *_holders(inspection, wide=False), "", sep="\n")
    print(about_break(inspection, holder))
    return _answer("Break it? [y/N] ").strip().lower() in ("y", "yes")


def _answer(question: str) -> str:
    """Read a line; empty at end of file. Not `input`: a Ctrl-C that arrives just before it starts
    to read would take effect only after the next line."""
    print(question, end="", flush=True)
    while not select.select([sys.stdin], [], [], POLL)[0]:
        pass
    line = sys.stdin.readline()
    if not line:
        print()
    return line


def _break(admin: Admin, inspection: Inspection, holder: Holder, as_json: bool) -> int:
    address, name = inspection.address, escaped(inspection.address.name)
    try:
        broken = admin.break_hold(address, holder.fence)
    except BackendError as error:
        show = f"lockfast show {shell_quoted(address.name)}"
        return fail(f"{error}; whether it was broken is unknown: {show}", cli.UNREACHABLE)
    if not broken:
        why = f"the hold with fence {holder.fence} has ended meanwhile, nothing was broken"
        return fail(f"{name}: {why}", cli.NO)
    after: list[Holder] | None = None
    try:
        after = [*admin.inspect(address).snapshot.holders[:5]]
    except BackendError as error:
        print_stderr(f"the new holder could not be determined: {error}")
    if as_json:
        about = {"store": admin.store, **address._asdict(), "broken": True}
        documents = None if after is None else [*map(inspection.claim_document, after)]
        previous = inspection.claim_document(holder)
        print(json.dumps({**about, "previous": previous, "holders": documents}, indent=2))
        return 0
    print(f"{name}: broken, fence {holder.fence} of {describe(holder.who)}")
    if after is not None:
        lines = [f"held now by {describe(one.who)}, fence {one.fence}" for one in after]
        print("\n".join(lines) or "not held now")
    return 0


# Seconds between two inspections: short after an event, growing while nothing happens.
SHORTEST, LONGEST, GROWTH = 0.05, 0.25, 1.3
RETRY = 1.0  # while the store does not answer
WATCH_EPILOG = f"""\
The name is inspected 4 to 20 times a second; changes in between may be missed. The first lines show
its state (holds, waits, free), the following ones what happens:

  acquired  a new holder
  passed    from one holder to the next, and how the first hold ended
  ended     released or broken (or its process or session ended): the store does not say which
  lapsed    the lease expired without a renewal: the holder is dead, paused or disconnected
  waits     a waiter joined the queue
  left      a waiter left the queue without the lock: timed out, or died

While the store does not answer, watch keeps trying; stderr reports the outage and its end. Stop
with Ctrl-C.

examples:
  lockfast watch nightly-report
  lockfast watch nightly-report --json | jq -r 'select(.event == "lapsed") | .previous.host'

{exits("never: watch ends by a signal or a closed pipe")}"""


@verb(
    "Print what happens to a name, line by line, until Ctrl-C.",
    WATCH_EPILOG,
    [
        cli.NAME,
        cli.ONCE,
        cli.JSON_LINES,
        *cli.store(),
    ],
)
def watch(args: argparse.Namespace) -> int:
    before = signal.signal(signal.SIGTERM, cli.end)
    try:
        with administer(args) as admin:
            address = admin.address(args.name, once=args.once)
            _follow(Watch(admin, address, admin.capabilities), args.json)
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(watch: Watch, as_json: bool) -> Never:
    _print(watch, watch.poll(), as_json)  # an unreachable store is an error at first
    unreachable = False
    pause = SHORTEST
    while True:
        _sleep(pause)
        try:
            events = watch.poll()
        except BackendError as error:
            if not error.transient:
                raise
            if not unreachable:
                print_stderr(f"{error}; still trying")
            unreachable, pause = True, RETRY
            continue
        if unreachable:
            print_stderr("the store answers again")
        pause = SHORTEST if events or unreachable else min(pause * GROWTH, LONGEST)
        unreachable = False
        _print(watch, events, as_json)


def _print(watch: Watch, events: list[Event], as_json: bool) -> None:
    for event in events:
        print(json.dumps(watch.document(event)) if as_json else watch.line(event))
    sys.stdout.flush()


def _sleep(seconds: float) -> None:
    """Sleep; raise `BrokenPipeError` as soon as the reader of stdout is gone, so that
    ``watch … | head -1`` ends then and not at the next hand-over."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    for _, events in poll.poll(seconds * 1000):
        if events & select.POLLERR:
            raise BrokenPipeError
        time.sleep(seconds)  # the terminal hung up: SIGHUP follows
