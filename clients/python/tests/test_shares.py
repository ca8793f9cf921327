"""Shares: when they are asked for, used and returned, in single steps and at random."""

import logging
import os
import random
import threading
import time
import unittest
import warnings
from unittest import mock

from divvy import _clock
from divvy._keeper import Keeper
from fake_server import Clock, ClockTest, FakeServer, connect, until

SEARCH = {"api": "search"}


def hits(counter, count, cost=1):
    """Returns the sources of this many allowed hits."""
    answers = [counter.hit(cost) for _ in range(count)]
    assert all(answers)
    return [answer.source for answer in answers]


class SharesTest(ClockTest):
    def test_rare_hits_ask_the_server(self):
        with FakeServer() as server, connect(server) as divvy:
            self.assertEqual({divvy.hit({"user": str(user)}).source for user in range(30)}, {"server"})
            self.assertEqual(server.count("shares"), 0)

    def test_slow_hits_ask_the_server(self):
        with FakeServer() as server, connect(server) as divvy:
            for _ in range(30):
                self.assertEqual(divvy.hit(SEARCH).source, "server")
                self.clock.move(200)
            self.assertEqual(server.count("shares"), 0)

    def test_busy_counter_is_decided_from_shares(self):
        with FakeServer() as server, connect(server) as divvy:
            sources = hits(divvy.counter(SEARCH), 100)
            self.assertEqual(sources, ["server"] * 9 + ["share"] * 91)

    def test_fields_in_another_order_are_the_same_counter(self):
        with FakeServer() as server, connect(server) as divvy:
            hits(divvy.counter({"api": "search", "user": "a"}), 10)
            self.assertEqual(divvy.hit({"user": "a", "api": "search"}).source, "share")
            self.assertEqual(divvy.hit({"user": "b", "api": "search"}).source, "server")

    def test_answer_from_share_has_all_fields(self):
        with FakeServer(limit=1_000) as server, connect(server) as divvy:
            hits(divvy.counter(SEARCH), 9)
            self.assertEqual(divvy.hit(SEARCH)[:], (True, 990, 60, None, "r", "share"))
            self.clock.move(900)
            self.assertEqual(divvy.hit(SEARCH)[:], (True, 989, 60, None, "r", "share"))
            self.clock.move(200)
            self.assertEqual(divvy.hit(SEARCH)[:], (True, 988, 59, None, "r", "share"))

    def test_next_share_is_there_before_the_first_is_empty(self):
        with FakeServer() as server, connect(server) as divvy:
            server.most = 100
            counter = divvy.counter(SEARCH)
            hits(counter, 9 + 75)
            self.assertEqual(server.count("shares"), 1)
            self.assertEqual(counter.hit().source, "share")
            until(lambda: len(counter._shares) == 2)
            self.assertEqual(hits(counter, 24 + 75), ["share"] * 99)
            until(lambda: not counter._asking)
            self.assertEqual(server.count("shares"), 2)

    def test_hits_do_not_wait_for_the_next_share(self):
        with FakeServer() as server, connect(server) as divvy:
            server.most = 20
            counter = divvy.counter(SEARCH)
            hits(counter, 10)
            # The thread's request is held up until the test has seen that hits are answered.
            held = threading.Event()
            server.loses = lambda path: path == "/v1/shares" and not held.wait(30)
            self.assertEqual(hits(counter, 19), ["share"] * 19)
            self.assertEqual(hits(counter, 5), ["server"] * 5)
            held.set()

    def test_next_share_is_not_asked_for_again_after_an_error(self):
        with FakeServer() as server, connect(server) as divvy:
            server.most = 100
            counter = divvy.counter(SEARCH)
            hits(counter, 10)
            server.refuse = lambda path: (503, {}) if path == "/v1/shares" else None
            hits(counter, 80)
            until(lambda: not counter._asking)
            self.assertEqual(hits(counter, 40), ["share"] * 19 + ["server"] * 21)
            self.assertEqual(server.count("shares"), 2)
            self.clock.move(1_000)
            server.refuse = lambda path: None
            hits(counter, 1)
            until(lambda: counter._shares)
            self.assertEqual(hits(counter, 1), ["share"])

    def test_share_is_used_while_the_server_does_not_answer(self):
        with FakeServer() as server, connect(server, on_error="deny") as divvy, self.assertLogs("divvy", logging.WARNING):
            server.most = 20
            counter = divvy.counter(SEARCH)
            hits(counter, 10)
            server.loses = lambda path: True
            self.assertEqual(hits(counter, 19), ["share"] * 19)
            self.assertEqual(counter.hit()[:], (False, 0, 1, 1, None, "policy"))

    def test_empty_share_never_denies(self):
        with FakeServer(limit=100) as server, connect(server) as divvy:
            # While the last credits are on their way to the client, the server has none.
            allowed = 0
            while allowed < 100:
                allowed += bool(divvy.hit(SEARCH))
            self.assertEqual(divvy.hit(SEARCH)[:], (False, 0, 60, 60, "r", "server"))
            # Denied hits ask for no more shares for a while.
            until(lambda: not divvy.counter(SEARCH)._asking)
            asked = server.count("shares")
            for _ in range(20):
                self.assertFalse(divvy.hit(SEARCH))
            until(lambda: not divvy.counter(SEARCH)._asking)
            self.assertLessEqual(server.count("shares"), asked + 1)

    def test_hit_is_covered_by_one_share(self):
        with FakeServer() as server, connect(server) as divvy:
            server.most = 20
            counter = divvy.counter(SEARCH)
            hits(counter, 10)
            self.assertEqual(counter.hit(21).source, "server")
            self.assertEqual(counter.hit(10).source, "share")

    def test_cost_of_0_asks_the_server(self):
        with FakeServer() as server, connect(server) as divvy:
            hits(divvy.counter(SEARCH), 10)
            self.assertEqual(divvy.hit(SEARCH, 0).source, "server")

    def test_wrong_cost_is_refused_with_and_without_share(self):
        with FakeServer() as server, connect(server) as divvy:
            for _ in range(2):
                for cost in (-1, 0.5, True, float("nan")):
                    self.assertRaises(ValueError, divvy.hit, SEARCH, cost)
                self.assertRaises(TypeError, divvy.hit, SEARCH, "1")
                hits(divvy.counter(SEARCH), 10)

    def test_share_is_not_used_after_its_end(self):
        # Without the thread, which would return the share.
        with mock.patch.object(Keeper, "_look_at"), FakeServer(milliseconds=5_000) as server, connect(server) as divvy:
            counter = divvy.counter(SEARCH)
            hits(counter, 10)
            self.clock.move(4_999)
            self.assertEqual(counter.hit().source, "share")
            self.clock.move(1)
            self.assertEqual(counter.hit().source, "server")
            self.assertEqual(counter._shares, [])

    def test_time_counts_from_the_request(self):
        with FakeServer(milliseconds=300) as server, connect(server) as divvy:
            counter = divvy.counter(SEARCH)
            hits(counter, 9)
            server.loses = lambda path: self.clock.move(300)
            self.assertEqual(counter.hit().source, "server")
            self.assertEqual(server.count("/v1/shares"), 1)

    def test_unused_share_goes_back_after_a_second(self):
        with FakeServer(limit=1_000) as server, connect(server) as divvy:
            counter = divvy.counter(SEARCH)
            hits(counter, 12)
            self.clock.move(900)
            counter.hit()
            self.clock.move(999)
            with counter._lock:
                self.assertEqual(counter._remove_unneeded(_clock.now())[0], [])
            self.clock.move(1)
            divvy._keeper.wake(counter)
            until(lambda: server.window(SEARCH).left == 1_000 - 13)
            self.assertEqual(counter.hit().source, "server")

    def test_close_returns_everything(self):
        with FakeServer(limit=1_000) as server:
            with connect(server) as divvy:
                hits(divvy.counter(SEARCH), 20)
                hits(divvy.counter({"api": "other"}), 20)
                self.assertEqual(server.count("return"), 0)
            self.assertEqual([window.left for window in server.windows.values()], [980, 980])
            self.assertRaises(RuntimeError, divvy.hit, SEARCH)
            divvy.close()

    def test_empty_and_ended_shares_are_not_returned(self):
        with FakeServer() as server:
            with connect(server) as divvy:
                server.most = 10
                hits(divvy.counter({"api": "ended"}), 10)
                self.clock.move(10_000)
                hits(divvy.counter(SEARCH), 10)
                server.refuse = lambda path: (503, {}) if path == "/v1/shares" else None
                self.assertEqual(hits(divvy.counter(SEARCH), 9), ["share"] * 9)
            self.assertEqual(server.count("return"), 0)

    def test_share_that_arrives_after_close_goes_back(self):
        with FakeServer(limit=1_000) as server:
            divvy = connect(server)
            hits(divvy.counter(SEARCH), 9)
            held, arrived = threading.Event(), threading.Event()
            server.loses = lambda path: path == "/v1/shares" and (arrived.set() or not held.wait(30))
            thread = threading.Thread(target=lambda: divvy.hit(SEARCH))
            thread.start()
            arrived.wait(30)
            divvy.close()
            held.set()
            thread.join()
            self.assertEqual(server.window(SEARCH).left, 1_000 - 10)

    def test_fewer_hits_ask_for_fewer_credits(self):
        with FakeServer() as server, connect(server) as divvy:
            counter = divvy.counter(SEARCH)
            hits(counter, 400)
            with counter._lock:
                self.assertEqual(counter._wanted(1, _clock.now()), 4_000)
            for _ in range(3):
                for _ in range(20):
                    self.clock.move(50)
                    counter.hit()
                with counter._lock:
                    # The thread does this, at least once a second.
                    counter._remove_unneeded(_clock.now())
            with counter._lock:
                self.assertEqual(counter._wanted(1, _clock.now()), 20)

    def test_denied_hit_enlarges_no_share(self):
        with FakeServer(limit=1_000) as server, connect(server) as divvy:
            counter = divvy.counter(SEARCH)
            hits(counter, 3)
            for cost in (5_000, 2_000):
                self.assertFalse(counter.hit(cost).allowed)
            hits(counter, 20)
            with counter._lock:
                self.assertLess(counter._wanted(1, _clock.now()), 1_000)

    def test_share_that_lasts_for_a_second_needs_no_next_one(self):
        with FakeServer(milliseconds=60_000) as server, connect(server) as divvy:
            counter = divvy.counter(SEARCH)
            hits(counter, 10)
            while counter._share.credits > 2:
                self.clock.move(100)
                self.assertEqual(counter.hit().source, "share")
                until(lambda: not counter._asking)
            self.assertEqual(server.count("shares"), 1)
            hits(counter, 1)
            until(lambda: len(counter._shares) == 2)

    def test_counters_are_bounded(self):
        with FakeServer() as server, connect(server, max_counters=3) as divvy:
            operations = [{"user": str(user)} for user in range(4)]
            sources = [[divvy.hit(operation).source for _ in range(12)][-1] for operation in operations]
            self.assertEqual(sources, ["share", "share", "share", "server"])
            self.assertEqual(len(divvy._counters), 3)
            # Those that are not hit make room.
            self.clock.move(2_000)
            for counter in divvy._counters.values():
                divvy._keeper.wake(counter)
            until(lambda: not divvy._keeper._counters)
            self.assertEqual([divvy.hit(operations[3]).source for _ in range(12)][-1], "share")
            self.assertEqual(len(divvy._counters), 1)

    def test_only_idle_counters_make_room(self):
        with FakeServer() as server, connect(server, max_counters=2) as divvy:
            hits(divvy.counter({"user": "busy"}), 12)
            hits(divvy.counter({"user": "idle"}), 1)
            self.clock.move(1_000)
            hits(divvy.counter({"user": "new"}), 1)
            self.assertEqual([key[0][1] for key in divvy._counters], ["busy", "new"])

    def test_counters_that_user_code_holds_are_bounded(self):
        with FakeServer() as server, connect(server, max_counters=2) as divvy:
            counters = [divvy.counter({"user": str(user)}) for user in range(3)]
            self.assertEqual([hits(counter, 12)[-1] for counter in counters], ["share", "share", "server"])

    def test_shares_can_be_off(self):
        with FakeServer() as server, connect(server, shares=False) as divvy:
            self.assertEqual(set(hits(divvy.counter(SEARCH), 50)), {"server"})

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_child_begins_without_shares(self):
        with FakeServer(limit=1_000) as server, connect(server) as divvy:
            counter = divvy.counter(SEARCH)
            hits(counter, 12)
            self.assertEqual(server.count("shares"), 1)
            read, write = os.pipe()
            # Other threads might hold these locks at this moment.
            with counter._lock, divvy._lock, divvy._keeper._lock, warnings.catch_warnings():
                # Newer versions of Python warn of forks in a process with threads.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
                if child == 0:
                    try:
                        # The parent's hits count for the demand, so this needs a new share.
                        sources = hits(counter, 3) + [divvy.hit(SEARCH).source]
                        divvy.close()
                        os.write(write, ",".join(sources).encode())
                    finally:
                        os._exit(0)
            os.close(write)
            with open(read) as pipe:
                self.assertEqual(pipe.read().split(","), ["share"] * 4)
            os.waitpid(child, 0)
            self.assertEqual(server.count("shares"), 3)
            self.assertEqual(counter.hit().source, "share")
            self.assertEqual(server.window(SEARCH).left + counter._share.credits, 1_000 - 12 - 4 - 1)


class ThreadTest(unittest.TestCase):
    """The background thread, by the real clock."""

    def test_thread_ends_when_nothing_is_hit(self):
        with FakeServer(limit=1_000) as server, connect(server) as divvy:
            self.assertIsNone(divvy._keeper._thread)
            hits(divvy.counter(SEARCH), 12)
            until(lambda: divvy._keeper._thread is None)
            self.assertEqual(server.window(SEARCH).left, 1_000 - 12)
            # Another one begins with the next share.
            asked = server.count("shares")
            hits(divvy.counter(SEARCH), 12)
            self.assertGreater(server.count("shares"), asked)

    def test_share_goes_back_before_it_ends(self):
        with FakeServer(limit=1_000, milliseconds=900) as server, connect(server) as divvy:
            hits(divvy.counter(SEARCH), 12)
            until(lambda: server.window(SEARCH).left == 1_000 - 12)


class RandomTest(unittest.TestCase):
    """Random hits of several clients and threads, with faults. At most the limit is granted."""

    def run_round(self, seed, faults):
        rng = random.Random(seed)
        limit = rng.choice([50, 400, 3_000])
        with FakeServer(limit, milliseconds=rng.choice([60, 200, 9_800])) as server, Clock(runs=True) as clock:
            server.most = rng.choice([5, 50, 1_000])
            if faults:
                refusals = [(503, {}), (500, {}), (409, {})] + [None] * 20
                server.refuse = lambda path: rng.choice(refusals)
                server.loses = lambda path: rng.random() < 0.1
            clients = [connect(server, on_error="deny") for _ in range(rng.randint(1, 3))]
            granted = [0] * 6
            seeds = [rng.random() for _ in granted]

            def work(index):
                own = random.Random(seeds[index])
                client = clients[index % len(clients)]
                counter = client.counter(SEARCH)
                for _ in range(own.choice([20, 200])):
                    cost = own.choice([1, 1, 1, 2, 7])
                    try:
                        granted[index] += cost if own.choice([counter.hit, lambda c: client.hit(SEARCH, c)])(cost) else 0
                    except RuntimeError:
                        # Another thread has closed this client.
                        break
                    if own.random() < 0.01:
                        time.sleep(own.choice([0.001, 0.02]))
                    if own.random() < 0.004:
                        clock.move(own.choice([10, 100, 1_000]))
                    if own.random() < 0.0005:
                        client.close()

            threads = [threading.Thread(target=work, args=(index,)) for index in range(len(granted))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for client in clients:
                client.close()
            left = server.window(SEARCH).left
            self.assertLessEqual(sum(granted) + left, limit, f"seed {seed}")
            if not faults and server.milliseconds > 9_000 and clock.moved == 0:
                self.assertEqual(sum(granted) + left, limit, f"seed {seed}")

    def run_rounds(self, faults):
        logging.disable()
        self.addCleanup(logging.disable, logging.NOTSET)
        for _ in range(int(os.environ.get("DIVVY_TEST_ROUNDS", 5))):
            self.run_round(random.getrandbits(32), faults)

    def test_limit_holds_with_faults(self):
        self.run_rounds(faults=True)

    def test_limit_holds_without_faults(self):
        self.run_rounds(faults=False)


if __name__ == "__main__":
    unittest.main()
