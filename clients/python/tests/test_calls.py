"""Calls to the server: logins, errors, retries, connections."""

import logging
import socket
import threading
import unittest

from divvy import Divvy, DivvyError
from fake_server import PATIENCE, ClockTest, FakeServer, connect, until

SEARCH = {"api": "search"}


def lose_first(paths):
    """Returns a function that loses the first reply to each of these paths."""
    paths = set(paths)

    def loses(path):
        if path in paths:
            paths.remove(path)
            return True
        return False

    return loses


class CallsTest(ClockTest):
    def test_logins(self):
        for login, header in (
            ({}, None),
            ({"token": "secret"}, "Bearer secret"),
            ({"password": "correct horse"}, "Bearer correct horse"),
            ({"user": "app", "password": "a:ü"}, "Basic YXBwOmE6w7w="),
        ):
            with FakeServer() as server, connect(server, **login) as divvy:
                self.assertTrue(divvy.hit(SEARCH))
                self.assertEqual(server.authorization, header)

    def test_wrong_arguments_are_refused(self):
        url = "http://127.0.0.1:1"
        for arguments in (
            {"url": "127.0.0.1:8322"},
            {"url": "http://app:secret@127.0.0.1:8322"},
            {"url": url, "token": "a", "password": "b"},
            {"url": url, "user": "a"},
            {"url": url, "on_error": "ignore"},
            {"url": url, "timeout": 0},
        ):
            self.assertRaises(ValueError, Divvy, **arguments)
        with Divvy(url) as divvy:
            self.assertRaises(TypeError, divvy.hit, {"api": 1})

    def test_policies(self):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
            with self.assertRaises(DivvyError) as raised:
                Divvy(url).hit(SEARCH)
            self.assertIsNone(raised.exception.status)
            with self.assertLogs("divvy", logging.WARNING) as logs:
                for _ in range(3):
                    self.assertEqual(Divvy(url, on_error="allow").hit(SEARCH)[:], (True, 0, 0, None, None, "policy"))
                divvy = Divvy(url, on_error="deny")
                self.assertFalse(divvy.hit(SEARCH))
                self.assertFalse(divvy.hit(SEARCH))
            self.assertEqual(len(logs.output), 4)

    def test_errors_are_described(self):
        with FakeServer() as server, connect(server) as divvy:
            server.refuse = lambda path: (403, {"title": "Forbidden", "detail": "no category", "pointer": "#/operation"})
            with self.assertRaisesRegex(DivvyError, "403: no category .#/operation."):
                divvy.hit(SEARCH)
            self.assertEqual(server.count("hit"), 1)
            server.refuse = lambda path: (200, ["something else"])
            with self.assertRaisesRegex(DivvyError, "does the URL lead to divvy"):
                divvy.hit(SEARCH)

    def test_lost_reply_counts_once(self):
        with FakeServer(limit=10) as server, connect(server) as divvy:
            server.loses = lose_first(["/v1/hit"])
            self.assertEqual(divvy.hit(SEARCH).remaining, 9)
            self.assertEqual(server.count("hit"), 2)

    def test_hits_are_sent_once_while_the_server_is_away(self):
        with FakeServer() as server, connect(server) as divvy:
            server.loses = lambda path: True
            for sent, milliseconds in ((3, 999), (4, 1_000), (7, 0)):
                self.assertRaises(DivvyError, divvy.hit, SEARCH)
                self.assertEqual(server.count("hit"), sent)
                self.clock.move(milliseconds)

    def test_busy_server_is_asked_again(self):
        with FakeServer(limit=10) as server, connect(server) as divvy:
            replies = [(503, {}), (409, {})]
            server.refuse = lambda path: replies.pop() if replies else None
            # 409 is about the first hit, so it is an answer, unless this is a retry.
            self.assertRaises(DivvyError, divvy.hit, SEARCH)
            replies = [(409, {}), (503, {})]
            self.assertEqual(divvy.hit(SEARCH).remaining, 9)
            self.assertEqual(server.count("hit"), 4)

    def test_timeout_bounds_a_hit(self):
        with FakeServer() as server, Divvy(server.url, timeout=0.1) as divvy:
            held = threading.Event()
            server.loses = lambda path: not held.wait(PATIENCE)
            self.assertRaises(DivvyError, divvy.hit, SEARCH)
            held.set()

    def test_late_reply_is_not_the_answer_to_another_hit(self):
        with FakeServer() as server, Divvy(server.url, timeout=0.1) as divvy:
            held = threading.Event()
            server.loses = lambda path: not held.wait(PATIENCE)
            self.assertRaises(DivvyError, divvy.hit, {"api": "first"}, 7)
            held.set()
            divvy._timeout = PATIENCE
            self.assertEqual(divvy.hit({"api": "second"}).remaining, 1_000_000 - 1)

    def test_lost_share_is_not_asked_for_again(self):
        with FakeServer(limit=1_000) as server, connect(server) as divvy:
            server.loses = lose_first(["/v1/shares"])
            sources = [divvy.hit(SEARCH).source for _ in range(30)]
            self.assertEqual(set(sources), {"server"})
            self.assertEqual(server.count("shares"), 1)

    def test_refused_shares_are_not_asked_for_again(self):
        for status in (404, 409):
            with FakeServer() as server, connect(server) as divvy:
                server.refuse = lambda path: (status, {}) if "shares" in path else None
                for _ in range(40):
                    self.assertEqual(divvy.hit(SEARCH).source, "server")
                self.assertEqual(server.count("shares"), 1)

    def test_blocked_actor_is_denied(self):
        denial = {"allowed": False, "limit": 9, "remaining": 0, "balance": 0, "reset": 0, "retryAfter": None, "rule": "r"}
        with FakeServer() as server, connect(server) as divvy:
            server.refuse = lambda path: (429, denial) if "shares" in path else None
            answers = [divvy.hit(SEARCH) for _ in range(10)]
            self.assertEqual([answer.allowed for answer in answers], [True] * 9 + [False])
            self.assertEqual(answers[-1].source, "server")

    def test_lost_return_is_repeated(self):
        with FakeServer(limit=1_000) as server:
            lost = []
            server.loses = lambda path: path.endswith("return") and not lost and not lost.append(path)
            with connect(server) as divvy:
                for _ in range(20):
                    divvy.hit(SEARCH)
            self.assertEqual(server.count("return"), 2)
            self.assertEqual(server.window(SEARCH).left, 980)

    def test_close_gives_up_if_the_server_is_away(self):
        with FakeServer() as server:
            divvy = connect(server)
            for api in range(20):
                for _ in range(12):
                    divvy.hit({"api": str(api)})
            held = threading.Event()
            server.loses = lambda path: not held.wait(PATIENCE)
            divvy._timeout = 0.05
            returned = server.count("return")
            divvy.close()
            # One share, sent twice. The thread may have returned another one, on a busy machine.
            self.assertLessEqual(server.count("return"), returned + 4)
            held.set()

    def test_connections_are_kept_and_closed(self):
        with FakeServer() as server, connect(server) as divvy:
            for _ in range(5):
                divvy.hit(SEARCH)
            thread = threading.Thread(target=divvy.hit, args=(SEARCH,))
            thread.start()
            thread.join()
            self.assertEqual(len({address for _, _, address in server.calls}), 2)

    def test_connection_that_the_server_closed_is_replaced(self):
        with FakeServer() as server, connect(server) as divvy:
            for _ in range(8):
                divvy.hit(SEARCH)
            server.listener.RequestHandlerClass.timeout = 0.01
            divvy._server.drop_connections()
            divvy.hit(SEARCH)
            until(divvy._server._connections.connection.was_closed)
            server.listener.RequestHandlerClass.timeout = None
            # A request for a share is not sent again.
            self.assertEqual(divvy.hit(SEARCH).source, "share")


if __name__ == "__main__":
    unittest.main()
