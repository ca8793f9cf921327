"""The client and a real server, whose URL is in DIVVY_URL. Its rules are in tests/client_libraries.rs."""

import json
import os
import subprocess
import sys
import threading
import unittest
import urllib.request
import uuid

from divvy import Divvy, DivvyError
from fake_server import PATIENCE, until

URL = os.environ.get("DIVVY_URL", "")
# The limit of each key.
LIMIT = 5_000

# Waits for a line, and hits until it is denied. Prints how many hits were allowed, and how many of them by shares.
PROCESS = """
import sys
from divvy import Divvy
sources = []
with Divvy(sys.argv[1], timeout=30) as divvy:
    counter = divvy.counter({"api": "window", "key": sys.argv[2]})
    print("ready", flush=True)
    sys.stdin.readline()
    while answer := counter.hit():
        sources.append(answer.source)
print(len(sources), sources.count("share"))
"""


def left(api, key):
    """Returns the credits that the server has left."""
    body = json.dumps({"operation": {"api": api, "key": key}}).encode()
    request = urllib.request.Request(f"{URL}/v1/peek", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
        return json.load(reply)["remaining"]


@unittest.skipUnless(URL, "needs a server")
class ServerTest(unittest.TestCase):
    def setUp(self):
        self.key = uuid.uuid4().hex
        self.divvy = Divvy(URL, timeout=PATIENCE)
        self.addCleanup(self.divvy.close)

    def hit(self, api, count):
        """Returns the answers to this many hits."""
        counter = self.divvy.counter({"api": api, "key": self.key})
        return [counter.hit() for _ in range(count)]

    def test_shares_grant_hits_and_go_back(self):
        answers = self.hit("window", 1_000)
        self.assertTrue(all(answers))
        self.assertEqual({answer.rule for answer in answers}, {"window"})
        self.assertGreater([answer.source for answer in answers].count("share"), 500)
        # Hits that the server answered may be missing.
        self.assertIn(answers[-1].remaining, range(LIMIT - 1_000, LIMIT - 500))
        self.assertLess(left("window", self.key), LIMIT - 1_000)
        self.divvy.close()
        self.assertEqual(left("window", self.key), LIMIT - 1_000)

    def test_unused_share_goes_back(self):
        self.hit("window", 20)
        until(lambda: left("window", self.key) == LIMIT - 20)

    def test_share_goes_back_at_the_end_of_the_process(self):
        program = """
import sys
from divvy import Divvy
divvy = Divvy(sys.argv[1], timeout=30)
for _ in range(20):
    divvy.hit({"api": "window", "key": sys.argv[2]})
"""
        subprocess.run([sys.executable, "-B", "-c", program, URL, self.key], check=True)
        self.assertEqual(left("window", self.key), LIMIT - 20)

    def test_answers_are_like_those_of_the_server(self):
        by_server = Divvy(URL, timeout=PATIENCE, shares=False)
        self.addCleanup(by_server.close)
        expected = [by_server.hit({"api": "window", "key": "twin" + self.key}) for _ in range(30)]
        for answer, other in zip(self.hit("window", 30), expected):
            self.assertEqual(answer._replace(source="", reset=0), other._replace(source="", reset=0))
            self.assertIn(answer.reset, range(3_500, 3_601))

    def test_processes_and_threads_never_exceed_the_limit(self):
        command = [sys.executable, "-B", "-c", PROCESS, URL, self.key]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = [subprocess.Popen(command, **pipes) for _ in range(3)]
        for process in processes:
            self.assertEqual(process.stdout.readline(), "ready\n")
        counter, sources = self.divvy.counter({"api": "window", "key": self.key}), []

        def work():
            while answer := counter.hit():
                sources.append(answer.source)

        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.divvy.close()
        total, by_shares = len(sources), sources.count("share")
        for process in processes:
            allowed, shared = map(int, process.communicate()[0].split())
            self.assertEqual(process.returncode, 0)
            total, by_shares = total + allowed, by_shares + shared
        self.assertGreater(by_shares, 0)
        self.assertEqual(total + left("window", self.key), LIMIT)

    def test_bucket_gives_shares_too(self):
        answers = self.hit("bucket", 500)
        self.assertTrue(all(answers))
        self.assertIn("share", {answer.source for answer in answers})
        self.divvy.close()
        # A bucket takes nothing back.
        self.assertLess(left("bucket", self.key), LIMIT - 490)

    def test_rule_without_shares_answers_each_hit(self):
        answers = self.hit("sliding", 30)
        self.assertEqual({answer.source for answer in answers}, {"server"})
        self.assertEqual(answers[-1].remaining, LIMIT - 30)

    def test_blocked_actor_is_denied(self):
        request = urllib.request.Request(
            f"{URL}/v1/blocks?rule=window&actor={self.key}", b"{}", {"Content-Type": "application/json"}, method="PUT"
        )
        urllib.request.urlopen(request, timeout=PATIENCE).close()
        self.assertFalse(any(self.hit("window", 20)))

    def test_mistake_is_described(self):
        with self.assertRaises(DivvyError) as raised:
            self.divvy.hit({"api": "window", "key": self.key}, 2**64)
        self.assertEqual(raised.exception.status, 400)


if __name__ == "__main__":
    unittest.main()
