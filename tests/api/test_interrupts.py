"""Exceptions of signal handlers (Ctrl-C, a time limit) at every instruction of a call."""

from __future__ import annotations

import dis
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

import lockfast
from lockfast import forks
from lockfast.api.client import DefaultClient
from lockfast.core import multi
from lockfast.runtime import threads


class Interrupt(BaseException):
    """The exception of a signal handler."""


# CPython runs signal handlers after these instructions, and after no other.
Last = dict[FrameType, tuple[str, bool]]  # the last instruction; whether signals were blocked
CHECKED = {"RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD"}


def interrupted(call: Callable[[], object], *codes: CodeType) -> Iterator[BaseException | None]:
    """Make the call again and again, interrupted at the first instant in one of ``codes`` at which
    a signal handler may run, at the second, and so on; yield what it raised. The last call is not
    interrupted. With signals blocked, only the handler of a signal that came before may run."""
    at, reached = 0, 0
    while reached >= at:
        at, reached, raised = at + 1, 0, None
        last: Last = {}

        def trace(
            frame: FrameType, event: str, arg: object, at: int = at, last: Last = last
        ) -> Any:
            nonlocal reached
            if frame.f_code not in codes:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode":
                executed, was_blocked = last.get(frame, ("", False))
                blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
                last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]], blocked
                if executed in CHECKED and not (was_blocked and blocked):
                    reached += 1
                    if reached == at:
                        raise Interrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            call()
        except BaseException as error:
            raised = error
        finally:
            sys.settrace(before)
        yield raised


def is_free(mutex: Any) -> bool:
    """Return True if another thread can acquire the mutex."""
    acquired: list[bool] = []

    def acquire() -> None:
        acquired.append(mutex.acquire(timeout=0.1))
        if acquired[0]:
            mutex.release()

    thread = threading.Thread(target=acquire)
    thread.start()
    thread.join()
    return acquired == [True]


def codes_of(kind: type) -> list[CodeType]:
    return [each.__code__ for each in vars(kind).values() if hasattr(each, "__code__")]


def test_the_mutex_of_the_default_client_is_unlocked_by_an_interrupt() -> None:
    default = DefaultClient(lambda: lockfast.connect("memory://"))
    codes = codes_of(DefaultClient) + codes_of(forks.ForkSafeMutex)
    outcomes = []
    for raised in interrupted(default, *codes):
        outcomes.append(raised)
        assert raised is None or type(raised) is Interrupt
        assert is_free(default._mutex.lock), f"after instruction {len(outcomes)}"
    assert len(outcomes) >= 3 and outcomes[-1] is None


@pytest.mark.filterwarnings(
    # An interrupt between the call of a coroutine function and the await of the coroutine.
    "ignore:coroutine .* was never awaited:RuntimeWarning",
)
def test_an_interrupt_of_a_multi_lock_is_not_replaced_by_another_error() -> None:
    def cycle() -> None:
        with client.multi_lock("a", other.lock("b"), timeout=0.2):
            pass

    codes = [multi.attempt_all.__code__, multi.release_all.__code__, multi._go_on.__code__]
    interrupts = 0
    with lockfast.connect("memory://") as client, lockfast.connect("memory://") as other:
        for raised in interrupted(cycle, *codes):
            assert raised is None or type(raised) is Interrupt
            interrupts += raised is not None
            for each in (client, other):  # the store still has what no statement had a name for
                for name in each.names():
                    each.break_hold(name, each.inspect(name).holders[0].fence)
                each._core.ledger.by_owner.clear()
                each._core.ledger.kept.clear()
    assert interrupts > 50


def test_an_interrupt_while_a_thread_starts_leaves_no_signal_blocked() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        for raised in interrupted(lambda: threads._start("t", int), threads._start.__code__):
            assert raised is None or type(raised) is Interrupt
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
