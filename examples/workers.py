"""Four worker processes that update a file in turn, which would not be safe without a lock."""

import multiprocessing
import tempfile
from pathlib import Path

import lockfast

ROUNDS = 25


def work(url: str, counter: Path) -> None:
    with lockfast.connect(url) as client:
        for _ in range(ROUNDS):
            with client.lock("counter", timeout=30):
                counter.write_text(str(int(counter.read_text()) + 1))


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    counter = folder / "counter"
    counter.write_text("0")
    workers = [
        multiprocessing.Process(target=work, args=(f"sqlite://{folder}/locks.db", counter))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(counter.read_text(), "of", 4 * ROUNDS)
    assert int(counter.read_text()) == 4 * ROUNDS
