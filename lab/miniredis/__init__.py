"""A small Redis in memory, on a clock of one's own: it runs the production Lua in virtual time.

`keyspace` is keys, types and expiry, `strings`, `hashes` and `sorted_sets` are the commands,
`scripts` is Lua, `store` puts them together as `MiniRedis`. Its truth is the real Redis 7:
`tests/redis/test_miniredis.py` runs random commands and scripts on both and demands the same
replies. What it does not know raises `NotImplementedError`, never a reply that Redis would not
give.

Where it differs on purpose:

* Time stands still for a whole script, as in Redis 7.2 and later. In 7.0 only the existence of keys
  is frozen: ``TIME``, ``PTTL`` and ``PEXPIRE`` go on reading the clock inside a script.
* Hashes keep the order of insertion at any size. Redis does so only while all are small.
* ``SCAN`` gives everything in one page. ``DBSIZE`` never counts a key that has expired.
* The ends of error texts that name the script and the line are left away.
"""

from lab.miniredis.keyspace import Argument, MiniError, Reply
from lab.miniredis.store import MiniRedis

__all__ = ["Argument", "MiniError", "MiniRedis", "Reply"]
