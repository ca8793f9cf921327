"""The client: decides hits from shares, and asks the server otherwise."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Optional

from . import _clock
from ._answer import Answer, DivvyError, problem, read_answer
from ._clock import MILLISECOND, SECOND
from ._counter import UNUSED, Counter, Share
from ._http import Server, authorization
from ._keeper import Keeper

log = logging.getLogger("divvy")

# Pauses before a hit is sent again, in seconds. After a hit that failed all the same, others are sent once for this time, so that
# they do not take long while the server is away.
PAUSES = (0.01, 0.05)
AWAY = SECOND
# A counter asks for no share for this time after the server had none to give, after an error, and after a refusal.
NONE_LEFT = 250 * MILLISECOND
FAILED = SECOND
REFUSED = 60 * SECOND
# The log has a line about failing hits at most this often.
LOG_INTERVAL = 10 * SECOND


class Divvy:
    """A client of the server at `url`. Threads may share it.

    token, user, password: a token; a user with a password; or the server's password alone.
    timeout: seconds that a hit may take, with its retries.
    on_error: the answer to a hit that the server does not answer: "allow", "deny", or "raise" a DivvyError.
    shares: whether to decide hits on busy counters from shares.
    max_counters: operations that the client knows at a time. Hits on others go to the server.
    """

    def __init__(
        self,
        url: str,
        token: Optional[str] = None,
        user: Optional[str] = None,
        password: Optional[str] = None,
        timeout: float = 0.5,
        on_error: Literal["raise", "allow", "deny"] = "raise",
        shares: bool = True,
        max_counters: int = 10_000,
    ):
        if on_error not in ("raise", "allow", "deny"):
            raise ValueError('on_error must be "raise", "allow" or "deny"')
        if not timeout > 0:
            raise ValueError("the timeout must be more than 0 seconds")
        self._server = Server(url, authorization(token, user, password))
        self._timeout = timeout
        self._on_error = on_error
        self._uses_shares = shares
        self._max_counters = max_counters
        self._closed = False
        self._logged = _clock.now() - LOG_INTERVAL
        self._retries_from = 0
        self._lock = threading.Lock()
        self._counters: dict[tuple[tuple[str, str], ...], Counter] = {}
        # Counters that user code may hold.
        self._lent: weakref.WeakSet[Counter] = weakref.WeakSet()
        self._forgot = _clock.now()
        self._keeper = Keeper(self, max_counters)
        _clients.add(self)

    def hit(self, operation: Mapping[str, str], cost: int = 1) -> Answer:
        """Takes a hit of this cost.

        Raises DivvyError if the server does not answer and `on_error` is "raise".
        """
        key = tuple(sorted(operation.items()))
        counter = self._counters.get(key)
        return (self._counter(key) if counter is None else counter).hit(cost)

    def counter(self, operation: Mapping[str, str]) -> Counter:
        """Returns the counter of an operation, whose `hit` is faster than `Divvy.hit`."""
        counter = self._counter(tuple(sorted(operation.items())))
        self._lent.add(counter)
        return counter

    def _counter(self, key: tuple[tuple[str, str], ...]) -> Counter:
        with self._lock:
            counter = self._counters.get(key)
            if counter is None:
                counter = Counter(self, dict(key))
                if len(self._counters) >= self._max_counters:
                    self._forget_unused()
                if len(self._counters) < self._max_counters:
                    self._counters[key] = counter
        return counter

    def close(self) -> None:
        """Returns the unused credits of all shares. Later hits raise RuntimeError."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        counters = self._keeper.stop(2 * self._timeout)
        shares: list[Share] = []
        for counter in counters:
            with counter._lock:
                shares += counter._remove_unneeded(_clock.now(), everything=True)[0]
        for share in shares:
            if not self._return(share):
                # The server does not answer. The other shares end without a return.
                break
        self._server.drop_connections()

    def __enter__(self) -> Divvy:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _forget_unused(self) -> None:
        """Forgets counters that were not hit for a second, at most once a second, because it looks at all of them."""
        now = _clock.now()
        if now - self._forgot >= SECOND:
            self._forgot = now
            # User code may hold a forgotten counter. It works as before.
            self._counters = {
                key: counter for key, counter in self._counters.items() if counter._is_kept or now - counter._last < UNUSED
            }

    def _decide(self, counter: Counter, cost: int) -> Answer:
        """Decides a hit that the share in use does not cover."""
        if type(cost) is not int or cost < 0:
            raise ValueError("the cost must be a whole number, at least 0")
        if self._closed:
            raise RuntimeError("the client is closed")
        deadline = time.monotonic() + self._timeout
        if self._uses_shares and cost > 0:
            now = _clock.now()
            with counter._lock:
                counter._note(cost, now)
                answer = counter._take(cost, now)
                may_ask = answer is None and counter._may_ask(cost, now)
                counter._asking |= may_ask
            if may_ask:
                answer = self._get_share(counter, cost, deadline)
            if answer is not None:
                return answer
        is_allowed = False
        try:
            answer = self._ask(counter, cost, deadline)
            is_allowed = answer.allowed
            return answer
        finally:
            if self._uses_shares and not is_allowed:
                with counter._lock:
                    # A hit that is denied, or is an error, needs no credits.
                    counter._needed -= cost

    def _get_share(self, counter: Counter, cost: int, deadline: float) -> Optional[Answer]:
        """Gets a counter's first share, and decides a hit from it. The thread gets the later ones, for later hits."""
        is_first = self._keeper.adopt(counter)
        if is_first is None:
            counter._asking = False
        if not is_first:
            return None
        denial = self._ask_for_share(counter, cost, deadline)
        self._keeper.wake(counter)
        if denial is not None:
            return denial
        with counter._lock:
            return counter._take(cost, _clock.now())

    def _ask_for_share(self, counter: Counter, cost: int = 1, deadline: Optional[float] = None) -> Optional[Answer]:
        """Asks for a share, once: if the reply is lost, the share is, too. Returns the denial of a blocked actor."""
        sent = _clock.now()
        share, denial, pause = None, None, FAILED
        try:
            with counter._lock:
                wanted = counter._wanted(cost, sent)
                if self._closed or (deadline is None and counter._covers(wanted)):
                    pause = 0
                    return None
            body = f'{{"operation":{counter._operation},"want":{wanted}}}'
            status, reply = self._server.post("/v1/shares", body, deadline or time.monotonic() + self._timeout)
            if status == 200:
                now = _clock.now()
                share, left = Share.read(reply, sent, now)
                pause = NONE_LEFT if share is None else 0
                with counter._lock:
                    if not self._closed:
                        counter._add(share, left)
                        share = None
            elif status == 429:
                denial = read_answer(reply)
            elif status < 500:
                log.debug("no shares for %s: %s", counter._operation, problem(status, reply))
                pause = REFUSED
        except (DivvyError, KeyError, TypeError, ValueError) as error:
            log.debug("no share for %s: %s", counter._operation, error)
        finally:
            with counter._lock:
                counter._end_ask(_clock.now(), pause)
        if share is not None:
            # The client was closed while it waited.
            self._return(share)
        return denial

    def _return(self, share: Share) -> bool:
        """Gives back a share that no counter has anymore. Returns whether the server answered."""
        body = f'{{"credits":{share.credits}}}'
        # A return takes effect once, so it can be sent again.
        for _ in range(2):
            if share.credits <= 0 or _clock.now() >= share.until:
                return True
            with contextlib.suppress(DivvyError):
                self._server.post(f"/v1/shares/{share.id}/return", body, time.monotonic() + self._timeout)
                return True
        return False

    def _ask(self, counter: Counter, cost: int, deadline: float) -> Answer:
        """Asks the server, again if that is worthwhile. The key makes it count the hit once."""
        body = f'{{"operation":{counter._operation},"cost":{cost}}}'
        key = secrets.token_hex(16)
        for pause in (*PAUSES, None) if _clock.now() >= self._retries_from else (None,):
            try:
                status, reply = self._server.post("/v1/hit", body, deadline, key)
                if status in (200, 429):
                    return read_answer(reply)
                error = problem(status, reply)
                # 409: the hit that was sent first is not answered yet.
                may_help = status in (408, 502, 503, 504) or (status == 409 and pause != PAUSES[0])
            except DivvyError as no_reply:
                error, may_help = no_reply, True
            if pause is None or not may_help or time.monotonic() + pause >= deadline:
                if may_help:
                    self._retries_from = _clock.now() + AWAY
                break
            time.sleep(pause)
        return self._apply_policy(error)

    def _apply_policy(self, error: DivvyError) -> Answer:
        """Answers a hit that the server did not answer."""
        if self._on_error == "raise":
            raise error
        now = _clock.now()
        if now - self._logged >= LOG_INTERVAL:
            self._logged = now
            log.warning("hits are answered by on_error=%r: %s", self._on_error, error)
        if self._on_error == "allow":
            return Answer(True, 0, 0, None, None, "policy")
        return Answer(False, 0, 1, 1, None, "policy")

    def _begin_as_child(self) -> None:
        """Makes this the client of a forked child, which must not use its parent's shares, connections and locks."""
        self._lock = threading.Lock()
        counters = {*self._counters.values(), *self._keeper._counters, *self._lent}
        self._keeper.forget()
        for counter in counters:
            counter._forget_shares()
        self._server.drop_connections()


_clients: weakref.WeakSet[Divvy] = weakref.WeakSet()


def _begin_as_child() -> None:
    for client in list(_clients):
        client._begin_as_child()


def _close_all() -> None:
    for client in list(_clients):
        client.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_as_child)
# The background threads still run then.
atexit.register(_close_all)
