"""The command on a pseudo-terminal, as a user runs it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from types import TracebackType
from typing import Self

from cli_processes import LOCKFAST, PATIENCE


class Terminal:
    """Runs the command with these arguments; ``text`` is all of its output so far."""

    def __init__(self, *arguments: object, columns: int = 100) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*LOCKFAST, *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment | {"TERM": "xterm"},
            preexec_fn=lambda: os.login_tty(os.dup(0)),
        )
        os.close(slave)
        self.text = ""

    def wait_for(self, text: str) -> str:
        """Wait for this text; return the output up to and including it."""
        until = time.monotonic() + PATIENCE
        while text not in self.text:
            rest = until - time.monotonic()
            assert rest > 0 and self._read(rest), f"expected {text!r} in {self.text!r}"
        return self.text[: self.text.index(text) + len(text)]

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Wait for the end of the command; return the exit code."""
        while self._read(PATIENCE):
            pass
        return self.process.wait(PATIENCE)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._master)
