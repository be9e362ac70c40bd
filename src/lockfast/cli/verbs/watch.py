"""`lockfast watch NAME`: print hand-overs and losses as they happen, one line each."""

from __future__ import annotations

import argparse
import json
import select
import signal
import sys
import time
from types import FrameType

from lockfast.cli.admin import Admin
from lockfast.cli.changes import Event, Watch
from lockfast.cli.exit_codes import TERMINATED, print_stderr
from lockfast.cli.options import add_json, add_once, add_store, client_of, exits, explain
from lockfast.errors import BackendError

# Seconds between two inspections: short after an event, growing while nothing happens.
SHORTEST, LONGEST, GROWTH = 0.05, 0.25, 1.3
RETRY = 1.0  # while the store does not answer
EPILOG = f"""\
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    explain(parser, "Print what happens to a name, line by line, until Ctrl-C.", EPILOG)
    parser.add_argument("name", metavar="NAME", help="name of the lock")
    add_once(parser)
    add_json(parser, "a JSON document per line")
    add_store(parser)


def execute(args: argparse.Namespace) -> int:
    before = signal.signal(signal.SIGTERM, _end)
    try:
        with client_of(args) as client:
            admin = Admin(client)
            watch = Watch(admin, admin.address(args.name, once=args.once), client.capabilities)
            _print(watch, watch.poll(), args.json)  # an unreachable store is an error at first
            _follow(watch, args.json)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _follow(watch: Watch, as_json: bool) -> None:
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


def _end(signum: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)
