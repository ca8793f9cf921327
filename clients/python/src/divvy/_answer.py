"""Answers to hits, and the error of a hit without an answer."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional


class Answer(NamedTuple):
    """The answer to a hit. It is true if the hit is allowed."""

    allowed: bool
    remaining: int
    """Credits left after this hit. From a share: as of the last reply for a share, minus what shares granted since."""
    reset: int
    """Seconds until credits come back."""
    retry_after: Optional[int]
    """Seconds after which the same hit is allowed, unless another client is quicker. None if waiting does not help."""
    rule: Optional[str]
    """The rule that answered. None if the server did not answer."""
    source: str
    """"share", "server", or "policy" (`on_error`, because the server did not answer)."""

    def __bool__(self) -> bool:
        return self.allowed


class DivvyError(Exception):
    """The server did not answer, or refused the request."""

    def __init__(self, detail: str, status: Optional[int] = None):
        super().__init__(detail if status is None else f"{status}: {detail}")
        self.status = status
        """The HTTP status. None if there was no reply."""


def read_answer(body: Any) -> Answer:
    """Reads the server's answer to a hit."""
    try:
        wait = body["retryAfter"]
        return Answer(
            bool(body["allowed"]),
            int(body["remaining"]),
            int(body["reset"]),
            None if wait is None else int(wait),
            str(body["rule"]),
            "server",
        )
    except (KeyError, TypeError, ValueError):
        raise DivvyError("this is no answer to a hit: does the URL lead to divvy?") from None


def problem(status: int, body: Any) -> DivvyError:
    """Returns the error that a reply describes."""
    described = body if isinstance(body, dict) else {}
    detail = described.get("detail") or described.get("title") or "no description"
    pointer = described.get("pointer")
    return DivvyError(f"{detail} ({pointer})" if pointer else str(detail), status)
