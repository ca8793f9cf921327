"""Counters: the operations that a client hits, with the shares that it holds of them."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Optional

from . import _clock
from ._answer import Answer
from ._clock import MILLISECOND, SECOND

if TYPE_CHECKING:
    from ._client import Divvy

# A counter that is hit less often in a second has no share.
HOT = 10
# Demand is estimated from at least this time.
SHORTEST_SAMPLE = 100 * MILLISECOND
# An unused share goes back after this time.
UNUSED = SECOND
# A share goes back this time before it ends.
ENDING = 50 * MILLISECOND
# The most shares of one counter: one in use, one for later, and remains that are too small for a hit.
MOST_SHARES = 4
MOST_WANTED = 2**32 - 1


class Share:
    """Credits that may be granted until `until`."""

    __slots__ = ("credits", "until", "id", "used", "low", "resets", "rule")

    def __init__(self, credits: int, until: int, id: str, used: int, resets: int, rule: str):
        self.credits = credits
        self.until = until
        self.id = id
        self.used = used
        """Time of the last grant, or of the reply."""
        self.low = max(credits // 4, 1)
        """The next share is asked for when fewer credits are left."""
        self.resets = resets
        """When the counter holds more credits."""
        self.rule = rule

    @classmethod
    def read(cls, body: Any, sent: int, now: int) -> tuple[Optional[Share], int]:
        """Reads the reply to a request that was sent at `sent`. Returns the share, or None, and the credits left besides.

        Raises KeyError, TypeError or ValueError if this is no such reply.
        """
        credits, left, id = int(body["credits"]), int(body["remaining"]), body["id"]
        if credits <= 0 or not isinstance(id, str):
            return None, left
        until = sent + int(body["milliseconds"]) * MILLISECOND
        return cls(credits, until, id, now, sent + int(body["reset"]) * SECOND, str(body["rule"])), left


# The share of a counter without a share. It is never changed.
NO_SHARE = Share(0, 0, "", 0, 0, "")
NO_SHARE.low = 0


class Counter:
    """An operation that a client hits. `Divvy.counter` returns it."""

    __slots__ = (
        "_client", "_operation", "_lock", "_share", "_shares", "_others", "_left", "_hits", "_needed", "_since",
        "_hits_since", "_needed_since", "_hits_before", "_needed_before", "_last", "_asking", "_asks_from", "_is_kept",
        "__weakref__",
    )  # fmt: skip

    def __init__(self, client: Divvy, operation: dict[str, str]):
        if not all(type(text) is str for pair in operation.items() for text in pair):
            raise TypeError("the fields and values of an operation must be str")
        self._client = client
        self._operation = json.dumps(operation)
        # Totals.
        self._hits = self._needed = 0
        # Hits and credits before `_since`, and in the second before it.
        self._hits_since = self._needed_since = self._hits_before = self._needed_before = 0
        self._since = self._last = _clock.now()
        self._forget_shares()

    def _forget_shares(self) -> None:
        """Begins without shares: at first, and in a forked child, where another thread's lock would stay locked."""
        self._lock = threading.Lock()
        # The share in use, and all shares with credits.
        self._share = NO_SHARE
        self._shares: list[Share] = []
        # Credits that are left besides those in `_share`, and on the server.
        self._others = self._left = 0
        self._asking = False
        # Whether the keeper looks after this counter, and when it may ask for a share.
        self._is_kept = False
        self._asks_from = 0

    def hit(self, cost: int = 1) -> Answer:
        """Takes a hit. See `Divvy.hit`."""
        # This is all that most hits do. It makes no objects under the lock, because that may run finalizers, which may hit.
        with self._lock:
            now = _clock.now()
            share = self._share
            left = share.credits - cost
            is_granted = left >= 0 and cost > 0 and type(cost) is int and now < share.until
            if is_granted:
                share.credits = left
                share.used = now
                self._hits += 1
                self._needed += cost
                left += self._others
                if share.credits < share.low and not self._asking:
                    self._asking = True
                    self._client._keeper.wake(self)
        if is_granted:
            reset = -((now - share.resets) // SECOND)
            return Answer(True, left, reset if reset > 0 else 0, None, share.rule, "share")
        return self._client._decide(self, cost)

    # The methods below need the lock.

    def _note(self, cost: int, now: int) -> None:
        """Counts a hit that the share in use does not cover."""
        self._hits += 1
        self._needed += cost
        self._last = now
        self._sample(now)

    def _sample(self, now: int) -> None:
        """Ends the sample of the demand once it is a second long."""
        elapsed = now - self._since
        if elapsed >= SECOND:
            self._hits_before = (self._hits - self._hits_since) * SECOND // elapsed
            self._needed_before = (self._needed - self._needed_since) * SECOND // elapsed
            self._since, self._hits_since, self._needed_since = now, self._hits, self._needed

    def _may_ask(self, cost: int, now: int) -> bool:
        """Returns whether to ask for a share: the counter is hit often, this hit costs no more than the others, and no share was
        refused lately."""
        needed = max(self._needed - self._needed_since, self._needed_before)
        if cost > needed - cost:
            return False
        is_hot = max(self._hits - self._hits_since, self._hits_before) >= HOT
        return is_hot and not self._asking and now >= self._asks_from and len(self._shares) < MOST_SHARES

    def _wanted(self, cost: int, now: int) -> int:
        """Returns the credits that the hits of a second need, at least for one that costs this much."""
        self._sample(now)
        sample = max(now - self._since, SHORTEST_SAMPLE)
        at_this_rate = (self._needed - self._needed_since) * SECOND // sample
        return min(max(at_this_rate, self._needed_before, cost, 1), MOST_WANTED)

    def _take(self, cost: int, now: int) -> Optional[Answer]:
        """Grants a hit that was noted from any share."""
        self._shares = [share for share in self._shares if share.credits > 0 and now < share.until]
        share = next((share for share in self._shares if share.credits >= cost), None)
        if share is None or cost <= 0:
            return None
        share.credits -= cost
        share.used = now
        self._use(share)
        reset = max(-((now - share.resets) // SECOND), 0)
        return Answer(True, self._others + share.credits, reset, None, share.rule, "share")

    def _use(self, share: Share) -> None:
        self._share = share
        self._others = self._left + sum(other.credits for other in self._shares if other is not share)

    def _add(self, share: Optional[Share], left: int) -> None:
        """Adds a share."""
        self._left = left
        if share is not None:
            # Only the last one asks for the next.
            for other in self._shares:
                other.low = 0
            self._shares.append(share)
        self._use(self._share)

    def _end_ask(self, now: int, pause: int) -> None:
        """Notes that an ask for a share is answered. The next one is only made after this pause."""
        self._asking = False
        self._asks_from = now + pause
        if pause:
            # Hits ask again when the shares are empty.
            for share in self._shares:
                share.low = 0

    def _covers(self, wanted: int) -> bool:
        """Returns whether the shares are enough, because the hits have become fewer. Then the next one is asked for later."""
        if not self._shares or sum(share.credits for share in self._shares) < wanted:
            return False
        last = self._shares[-1]
        last.low = min(last.low, wanted // 4)
        return True

    def _remove_unneeded(self, now: int, everything: bool = False) -> tuple[list[Share], Optional[int]]:
        """Takes out the shares that are unused or about to end. Returns them, and when to look again (None: never)."""
        self._sample(now)
        kept: list[Share] = []
        removed: list[Share] = []
        for share in self._shares:
            is_unneeded = now >= min(share.used + UNUSED, share.until - ENDING)
            (removed if is_unneeded or everything else kept).append(share)
        self._last = max([self._last, *(share.used for share in removed)])
        self._shares = kept
        if removed:
            self._use(self._share if self._share in kept else NO_SHARE)
        if kept:
            return removed, min(min(share.used + UNUSED, share.until - ENDING) for share in kept)
        if self._asking:
            return removed, now + UNUSED
        return removed, self._last + UNUSED if now < self._last + UNUSED else None
