"""The resource that a storm is about: it refuses every write whose fence is lower than one before.

A process of its own, run by `storm`. It knows nothing of the store: workers speak to it over a
unix socket, one connection per contender, a JSON list per line:

    hold   name fence pid n asked got      → go | rush | stay | end
    write  name fence pid n checked held   → accepted | refused
    any other record (left, fell, tired, raised …), which is only written down

All times are the workers' own, on the clock that the processes of a host share, so it does not
matter how long a line was under way. For a write what counts is when it comes, as for any resource.

The director asks on the same socket: ``catch`` a name's next holder (its `hold` is answered only
when the director says how), ``caught``, ``answer``, ``first`` hold after a moment, ``fallen``: has
this one told that it believes no more, ``end`` and ``report``.
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
        self.wanted: dict[str, list[int]] = {}  # name → of whom; of nobody: of anybody
        self.caught: dict[str, tuple[Record, asyncio.Future[str]]] = {}
        self.last_word = "go"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                if line.endswith(b"\n"):  # else its writer was killed in the middle
                    answer = await self.heard(json.loads(line))
                    if answer is not None:
                        writer.write(json.dumps(answer).encode() + b"\n")
        except ConnectionError:
            pass  # it was killed
        finally:
            writer.close()

    async def heard(self, record: Record) -> Any:
        match record:
            case ["hold", name, _, pid, *_]:
                self.records.append(record)
                self.holds[name].append(record)
                if name in self.wanted and pid in (self.wanted[name] or [pid]):
                    del self.wanted[name]
                    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                    self.caught[name] = (record, answer)
                    return await answer
                return self.last_word
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
            case ["answer", name, word]:
                self.wanted.pop(name, None)
                if name in self.caught:
                    self.caught.pop(name)[1].set_result(word)
                return True
            case ["first", name, since, but]:
                later = (one for one in self.holds[name] if one[6] > since and one[3] not in but)
                return next(later, [])
            case ["fallen", pid]:
                return any(one[0] == "fell" and one[3] == pid for one in self.records[::-1])
            case ["end"]:
                self.last_word = "end"
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
    # It ends with whoever started it, however that ended.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
