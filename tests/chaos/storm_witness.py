"""The witness of a storm: a fenced resource that refuses each write below the highest fence so far.

The witness is a process of its own, started by `storm`, and does not talk to the store. Workers
connect to it over a unix socket, one connection per contender, and send a JSON list per line:

    hold   name fence pid cycle asked acquired   → go | unchecked | linger | end
    write  name fence pid cycle checked held     → accepted | refused
    any other record (release, expired, timeout, unknown, raised), which is only stored

All times are the workers' own, on the clock that the processes of a host share, so the delay of a
line does not matter. A write counts when it arrives, as at any resource.

The director uses the same socket: ``catch`` a name's next holder (the reply to its `hold` is
withheld until the director sends one), ``caught``, ``answer``, ``first`` hold after a moment,
``has_expired`` (has this worker reported that its hold is no longer valid), ``end`` and ``report``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

Record = list[Any]


class Witness:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.holds: dict[str, list[Record]] = defaultdict(list)
        self.highest: dict[str, int] = defaultdict(int)
        self.wanted: dict[str, list[int]] = {}  # name → pids to catch; an empty list: any pid
        self.caught: dict[str, tuple[Record, asyncio.Future[str]]] = {}
        self.default_order = "go"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                if line.endswith(b"\n"):  # else its writer was killed in the middle of a line
                    answer = await self.handle(json.loads(line))
                    if answer is not None:
                        writer.write(json.dumps(answer).encode() + b"\n")
        except ConnectionError:
            pass  # the worker was killed
        finally:
            writer.close()

    async def handle(self, record: Record) -> Any:
        match record:
            case ["hold", name, _, pid, *_]:
                self.records.append(record)
                self.holds[name].append(record)
                if name in self.wanted and pid in (self.wanted[name] or [pid]):
                    del self.wanted[name]
                    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                    self.caught[name] = (record, answer)
                    return await answer
                return self.default_order
            case ["write", name, fence, *_]:
                accepted = fence >= self.highest[name]
                self.highest[name] = max(fence, self.highest[name])
                self.records.append([*record, accepted])
                return "accepted" if accepted else "refused"
            case ["catch", name, pids]:
                self.wanted[name] = pids
                return True
            case ["caught"]:
                return {name: record for name, (record, _) in self.caught.items()}
            case ["answer", name, order]:
                self.wanted.pop(name, None)
                if name in self.caught:
                    self.caught.pop(name)[1].set_result(order)
                return True
            case ["first", name, since, excluded]:
                holds = self.holds[name]
                later = (one for one in holds if one[6] > since and one[3] not in excluded)
                return next(later, [])
            case ["has_expired", pid]:
                return any(one[0] == "expired" and one[3] == pid for one in self.records[::-1])
            case ["end"]:
                self.default_order = "end"
                return True
            case ["report", path]:
                return self.report(path)
        self.records.append(record)
        return None

    def report(self, path: str) -> int:
        return Path(path).write_text(json.dumps(self.records))


async def main(path: str) -> None:
    server = await asyncio.start_unix_server(Witness().serve, path)
    print("ready", flush=True)
    # The witness ends when its parent closes stdin, however the parent ended.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
