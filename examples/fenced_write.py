"""A table that refuses stale writers: the half of fencing that only the resource can do.

A holder is paused for longer than its lease, another process takes over and writes, then the first
one resumes and writes too. The lock cannot prevent that; the fence does.
"""

import sqlite3
import tempfile

import lockfast
from lockfast.testing import VirtualClock, client

database = sqlite3.connect(tempfile.mkdtemp() + "/bank.db")
database.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, fence INTEGER)")
database.execute("INSERT INTO account VALUES (42, 100, 0)")


def write(balance: int, fence: int) -> bool:
    done = database.execute(
        "UPDATE account SET balance = ?, fence = ? WHERE id = 42 AND fence <= ?",
        (balance, fence, fence),
    )
    return done.rowcount == 1


clock = VirtualClock()  # so that this example need not wait for a lease
locks = client(clock)

sleeper = locks.lock("account:42", lease=10, owner="sleeper").acquire()
clock.advance(11)  # a long garbage collection
other = locks.lock("account:42", owner="other").acquire()

assert write(150, other.fence)
assert not write(90, sleeper.fence), "the stale writer must be refused"
assert sleeper.lost
print("refused: fence", sleeper.fence, "is older than", other.fence)

other.release()
try:
    sleeper.release()
except lockfast.HoldLost as error:
    print(error)
