"""`lockfast watch NAME`: hand-overs and losses, a line each, as they are seen."""

from __future__ import annotations

import argparse
import json
import select
import signal
import sys
import time
from types import FrameType

from lockfast.cli.admin import Desk
from lockfast.cli.changes import Event, Watch
from lockfast.cli.exit_codes import TERMINATED, say
from lockfast.cli.options import HELP, add_json, add_once, add_store, client_of, exits
from lockfast.errors import BackendError

# Seconds between two looks: short after something happened, longer while nothing does.
SHORTEST, LONGEST, GROWTH = 0.05, 0.25, 1.3
AWAY = 1.0  # while the store does not answer
EPILOG = f"""\
It looks four to twenty times a second: what comes and goes between two looks is not seen. First
comes what there is (holds, waits, free), then what happens:

  acquired  somebody holds it now
  passed    from one to the next, and how the first may have ended
  ended     released or broken (or its process, or its session, ended): which, nobody can see
  lapsed    its lease ran out without a renewal: the holder is dead, paused or cut off
  waits     somebody came to the queue
  left      somebody left it without having got it: gave up, or died

A store that goes away is waited for; that is said once on stderr. Ctrl-C ends it.

examples:
  lockfast watch nightly-report
  lockfast watch nightly-report --json | jq -r 'select(.event == "lapsed") | .previous.host'

{exits("never: it is ended by a signal, or by who reads it")}"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "What happens to a name, as lines, until Ctrl-C."
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    parser.add_argument("name", metavar="NAME")
    add_once(parser)
    add_json(parser, "a JSON document on each line, for scripts")
    add_store(parser)


def do(given: argparse.Namespace) -> int:
    before = signal.signal(signal.SIGTERM, _end)
    try:
        with client_of(given) as client:
            desk = Desk(client)
            watch = Watch(desk, desk.address(given.name, once=given.once), client.capabilities)
            _tell(watch, watch.look(), given.json)  # a store that is away at first is an error
            _follow(watch, given.json)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _follow(watch: Watch, for_scripts: bool) -> None:
    away = False
    pause = SHORTEST
    while True:
        _rest(pause)
        try:
            events = watch.look()
        except BackendError as error:
            if not error.transient:
                raise
            if not away:
                say(f"{error}; still looking")
            away, pause = True, AWAY
            continue
        if away:
            say("the store answers again")
        away, pause = False, SHORTEST if events or away else min(pause * GROWTH, LONGEST)
        _tell(watch, events, for_scripts)


def _tell(watch: Watch, events: list[Event], for_scripts: bool) -> None:
    for event in events:
        print(json.dumps(watch.document(event)) if for_scripts else watch.words(event))
    sys.stdout.flush()


def _rest(seconds: float) -> None:
    """`BrokenPipeError` as soon as nobody reads any more, though there is nothing to write: so
    ``watch … | head -1`` ends then, not at the next hand-over."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    for _, happened in poll.poll(seconds * 1000):
        if happened & select.POLLERR:
            raise BrokenPipeError
        time.sleep(seconds)  # a terminal that hung up: a signal will tell


def _end(signum: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)
