"""Measures hits that are granted from shares, in this process: `python bench.py [URL]`, without a URL on a fake server.

Prints microseconds for each hit, with the clock's own cost subtracted, and the hits of a second with several threads.
"""

import statistics
import sys
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / name) for name in ("src", "tests")]

from divvy import Divvy  # noqa: E402
from fake_server import FakeServer  # noqa: E402

COUNT = 200_000
OPERATION = {"api": "search", "user": "ada"}


def times(hit):
    """Returns the time of each hit that a share granted, in microseconds, in order."""
    clock, taken = time.perf_counter_ns, []
    for _ in range(COUNT):
        begin = clock()
        answer = hit()
        end = clock()
        if answer.source == "share":
            taken.append(end - begin)
    empty = min(-clock() + clock() for _ in range(10_000))
    return sorted((nanos - empty) / 1000 for nanos in taken)


def report(name, hit):
    taken = times(hit)
    cuts = statistics.quantiles(taken, n=1000)
    share = 100 * len(taken) / COUNT
    print(f"{name:34} p50 {cuts[499]:6.2f}  p99 {cuts[989]:6.2f}  p99.9 {cuts[998]:7.2f} µs  {share:5.1f} % from shares")


def report_threads(name, hit, threads):
    """Prints the rate of all threads together, and the longest hit."""
    longest = []

    def work():
        worst = 0
        for _ in range(COUNT // threads):
            begin = time.perf_counter_ns()
            hit()
            worst = max(worst, time.perf_counter_ns() - begin)
        longest.append(worst)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rate = COUNT / (time.perf_counter() - begin)
    print(f"{name}, {threads} threads: {rate:10,.0f} hits a second, longest {max(longest) / 1e6:.1f} ms")


def main(url):
    with Divvy(url) as divvy:
        counter = divvy.counter(OPERATION)
        for _ in range(20_000):
            counter.hit()
        report("counter.hit()", counter.hit)
        report("divvy.hit({...})", lambda: divvy.hit({"api": "search", "user": "ada"}))
        for threads in (1, 4):
            report_threads("counter.hit()", counter.hit, threads)
        for threads in (1, 4):
            report_threads("divvy.hit({...})", lambda: divvy.hit({"api": "search", "user": "ada"}), threads)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with FakeServer(limit=1_000_000_000) as server:
            main(server.url)
