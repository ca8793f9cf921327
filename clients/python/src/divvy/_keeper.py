"""The background thread of a client. It asks for the next share before one is empty, and returns what is not needed."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
from typing import TYPE_CHECKING, Optional

from . import _clock
from ._clock import SECOND

if TYPE_CHECKING:
    from ._client import Divvy
    from ._counter import Counter

log = logging.getLogger("divvy")


class Keeper:
    """Looks after counters while they are hit often. Its thread ends when there are no such counters."""

    def __init__(self, client: Divvy, max_counters: int):
        self._client = client
        self._max_counters = max_counters
        self.forget()

    def forget(self) -> None:
        """Begins with nothing: at first, and in a forked child, which has no thread."""
        self._lock = threading.Lock()
        # Counters, with the time when to look at each.
        self._counters: dict[Counter, int] = {}
        self._thread: Optional[threading.Thread] = None
        # Counters that need a share, or that are new.
        self._woken: queue.SimpleQueue[Optional[Counter]] = queue.SimpleQueue()
        # The same times in order, some of them outdated, each with a unique number.
        self._due: list[tuple[int, int, Counter]] = []
        self._number = itertools.count()

    def adopt(self, counter: Counter) -> Optional[bool]:
        """Looks after this counter, which is about to ask for a share.

        Returns True if it is new, so the caller asks; False if the thread asks; and None if there can be no share.
        """
        with self._lock:
            if counter in self._counters:
                self._woken.put(counter)
                return False
            if len(self._counters) >= self._max_counters or self._client._closed:
                return None
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="divvy", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    # The process has too many threads, or ends.
                    return None
                self._thread = thread
            self._counters[counter] = 0
            counter._is_kept = True
            return True

    def wake(self, counter: Counter) -> None:
        """Makes the thread ask for a share, or look at a counter that it does not know yet. Never waits."""
        self._woken.put(counter)

    def stop(self, seconds: float) -> list[Counter]:
        """Ends the thread of a closed client, which may take a call. Returns the counters."""
        with self._lock:
            counters, self._counters = list(self._counters), {}
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._woken.put(None)
            thread.join(seconds)
        return counters

    def _run(self) -> None:
        while self._goes_on():
            try:
                self._turn()
            except Exception:
                log.exception("divvy's background thread goes on after an error")

    def _goes_on(self) -> bool:
        with self._lock:
            if self._counters or not self._woken.empty():
                return True
            if threading.current_thread() is self._thread:
                self._thread = None
            return False

    def _turn(self) -> None:
        wait = (self._due[0][0] - _clock.now()) / SECOND if self._due else None
        try:
            counter = self._woken.get(timeout=None if wait is None else max(wait, 0))
        except queue.Empty:
            counter = None
        if counter is not None:
            if counter._asking:
                self._client._ask_for_share(counter)
            self._look_at(counter)
        now = _clock.now()
        while self._due and self._due[0][0] <= now:
            due, _, counter = heapq.heappop(self._due)
            if self._counters.get(counter) == due:
                self._look_at(counter)

    def _look_at(self, counter: Counter) -> None:
        """Returns what a counter does not need, and decides when to look at it again."""
        with counter._lock:
            shares, again = counter._remove_unneeded(_clock.now(), everything=self._client._closed)
        with self._lock:
            if again is None or self._client._closed:
                self._counters.pop(counter, None)
                counter._is_kept = False
            else:
                self._counters[counter] = again
                counter._is_kept = True
                heapq.heappush(self._due, (again, next(self._number), counter))
        for share in shares:
            self._client._return(share)
