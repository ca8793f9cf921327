"""A server for the tests, with counters of one window. It can fail, and lose replies. And a clock to move."""

import json
import random
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

from divvy import Divvy, _clock

# A timeout that is long enough for a busy machine.
PATIENCE = 30


def connect(server, **options):
    """Returns a client that does not give up."""
    return Divvy(server.url, **{"timeout": PATIENCE, **options})


def until(condition):
    """Waits for something that another thread does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


class Clock:
    """The clock of client and fake server. A test moves it, and it may run, too."""

    def __init__(self, runs=False):
        self.moved = 0
        real, start = _clock.now, _clock.now()
        self.patch = mock.patch.object(_clock, "now", lambda: (real() if runs else start) + self.moved)

    def __enter__(self):
        self.patch.start()
        return self

    def __exit__(self, *error):
        self.patch.stop()

    def move(self, milliseconds):
        self.moved += milliseconds * _clock.MILLISECOND


class ClockTest(unittest.TestCase):
    """The clock stands still, unless the test moves it, so that a busy machine changes nothing."""

    def setUp(self):
        self.clock = Clock()
        self.clock.__enter__()
        self.addCleanup(self.clock.__exit__)


class Window:
    """A counter. Credits of a share that are not returned stay taken."""

    def __init__(self, limit, milliseconds):
        self.limit = limit
        self.left = limit
        self.milliseconds = milliseconds
        self.shares = {}
        self.answers = {}


class FakeServer:
    """Settings may be changed while it serves."""

    def __init__(self, limit=1_000_000, milliseconds=9_800):
        self.lock = threading.Lock()
        self.limit, self.milliseconds = limit, milliseconds
        self.windows = {}
        self.calls = []
        # Instead of the answer: a function of the path that returns a status and a body, or None.
        self.refuse = lambda path: None
        # Whether a reply is lost, as a function of the path.
        self.loses = lambda path: False
        # The most credits of a share.
        self.most = 1_000_000
        self.authorization = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.serve(self, body)

            def log_message(self, *args):
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request, client_address):
                """Clients may disconnect."""

        self.listener = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.listener.server_port}"
        self.thread = threading.Thread(target=self.listener.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.listener.shutdown()
        self.thread.join()
        self.listener.server_close()

    def serve(self, handler, body):
        path = handler.path
        with self.lock:
            self.authorization = handler.headers["Authorization"]
            self.calls.append((path, body, handler.client_address))
            status, reply = self.refuse(path) or self.answer(path, body, handler.headers["Idempotency-Key"])
        if self.loses(path):
            handler.close_connection = True
            return
        text = json.dumps(reply).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def answer(self, path, body, key):
        now = _clock.now()
        if path.endswith("/return"):
            return self.take_back(path.split("/")[3], body["credits"], now)
        window = self.window(body["operation"])
        if path == "/v1/shares":
            credits = min(body["want"], window.left // 2, self.most)
            id = f"{random.getrandbits(64):x}" if credits else None
            if id:
                window.left -= credits
                window.shares[id] = (credits, now + window.milliseconds * _clock.MILLISECOND)
            milliseconds = window.milliseconds if id else 0
            return 200, {
                "credits": credits, "milliseconds": milliseconds, "id": id, "remaining": window.left, "reset": 60, "rule": "r",
            }  # fmt: skip
        if path != "/v1/hit" or not key:
            return 404, {"title": "no such path"}
        if key not in window.answers:
            cost = body["cost"]
            allowed = cost <= window.left
            window.left -= cost if allowed else 0
            window.answers[key] = (200 if allowed else 429), {
                "allowed": allowed, "limit": window.limit, "remaining": window.left, "balance": window.left, "reset": 60,
                "retryAfter": None if allowed else 60, "rule": "r",
            }  # fmt: skip
        return window.answers[key]

    def window(self, operation):
        return self.windows.setdefault(json.dumps(operation, sort_keys=True), Window(self.limit, self.milliseconds))

    def take_back(self, id, credits, now):
        for window in self.windows.values():
            taken, until = window.shares.pop(id, (0, 0))
            if now < until:
                assert 0 < credits <= taken, "more comes back than was given"
                window.left += credits
                return 200, {"returned": True}
        return 200, {"returned": False}

    def count(self, what):
        """Returns the number of calls whose path contains this."""
        with self.lock:
            return sum(what in path for path, _, _ in self.calls)
