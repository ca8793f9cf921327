"""A client of the rate limiter divvy.

    with Divvy("http://127.0.0.1:8322") as divvy:
        if not divvy.hit({"api": "search"}):
            ...  # too many requests

Hits on busy counters are granted from shares: credits that the client takes from the server ahead.
"""

from ._answer import Answer, DivvyError
from ._client import Divvy
from ._counter import Counter

__all__ = ["Answer", "Counter", "Divvy", "DivvyError"]
