"""A clock that nobody can set, and that goes on while the machine is suspended, in nanoseconds."""

import time
from functools import partial
from typing import Callable

SECOND = 1_000_000_000
MILLISECOND = 1_000_000

now: Callable[[], int]
if hasattr(time, "CLOCK_BOOTTIME"):
    now = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
elif hasattr(time, "CLOCK_MONOTONIC"):
    # On macOS, time.monotonic_ns() stands still while the machine sleeps. This clock does not.
    now = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
else:
    now = time.monotonic_ns
