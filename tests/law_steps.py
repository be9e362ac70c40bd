"""A store for tests of the law of slots: one name, and a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockfast.core import law
from lockfast.model import Busy, Claim, Differs, Gone, Granted, Snapshot
from lockfast.stores.memory import Memory

LEASE = 30.0
Wakeup = tuple[str, Granted | None]


class LawStore:
    """A memory store with one name and short claim ids. ``woken`` has the last step's wake-ups."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = 2000.0
        self.memory = Memory(lambda: self.now, lambda: self.wall)
        self.claims: dict[str, Claim] = {}
        self.woken: list[Wakeup] = []

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def claim(self, claim_id: str, **terms: Any) -> Granted | Busy | Differs:
        """Send a new claim, or repeat one on the same terms."""
        made = Claim(name="n", id=claim_id, who=f"host 1 {claim_id}", lease=LEASE)
        self.claims[claim_id] = self.claims.get(claim_id, made)._replace(**terms)
        return self._step(law.claim, self.claims[claim_id])

    def acquire(self, claim_id: str, **terms: Any) -> Granted:
        """Claim, and require a grant."""
        granted = self.claim(claim_id, **terms)
        assert isinstance(granted, Granted)
        return granted

    def enqueue(self, claim_id: str, **terms: Any) -> Busy:
        """Claim, and require that it waits."""
        busy = self.claim(claim_id, **terms)
        assert isinstance(busy, Busy)
        return busy

    def renew(self, claim_id: str, **terms: Any) -> Granted | Busy | Gone:
        return self._step(law.renew, self.claims[claim_id]._replace(**terms))

    def release(self, claim_id: str) -> bool:
        return self._step(law.release, self.claims[claim_id])

    def leave(self, claim_id: str) -> Snapshot:
        return self._step(law.leave, self.claims[claim_id])

    def transfer(self, claim_id: str, *, attached: bool, who: str = "w") -> Granted | Gone:
        return self._step(law.transfer, self.claims[claim_id]._replace(who=who), attached)

    def break_hold(self, fence: int) -> bool:
        return self._step(law.break_hold, fence)

    def look(self) -> Snapshot:
        return self._step(law.look, "n")

    def _step(self, verb: Callable[..., Any], *args: object) -> Any:
        answer, self.woken = self.memory.step("n", verb, *args)
        return answer

    @property
    def served(self) -> list[str]:
        return [claim_id for claim_id, grant in self.woken if grant is not None]

    @property
    def woken_without_grant(self) -> list[str]:
        return [claim_id for claim_id, grant in self.woken if grant is None]

    @property
    def holders(self) -> list[str]:
        return [holder.who.thread for holder in self.look().holders]

    @property
    def waiters(self) -> list[str]:
        return [waiter.who.thread for waiter in self.look().waiters]
