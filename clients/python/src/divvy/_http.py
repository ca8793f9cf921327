"""Calls to the server, on one kept-alive connection for each thread."""

from __future__ import annotations

import base64
import http.client
import json
import select
import ssl
import threading
import time
from typing import Any, Optional
from urllib.parse import urlsplit

from ._answer import DivvyError

MAX_REPLY = 1 << 20


class Connection:
    """A connection to the server, which closes when it is no longer used."""

    def __init__(self, connection: http.client.HTTPConnection):
        self.http = connection

    def __del__(self) -> None:
        self.http.close()

    def was_closed(self) -> bool:
        """Returns whether the server has closed the idle connection, or sent something unasked."""
        sock = self.http.sock
        if sock is None:
            return False
        if not hasattr(select, "poll"):
            return bool(select.select([sock], [], [], 0)[0])
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))


class Server:
    """The server with this URL."""

    def __init__(self, url: str, authorization: Optional[str]):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("the URL must be like http://127.0.0.1:8322")
        if parts.username is not None:
            raise ValueError("give the login as user and password, not in the URL")
        self._host, self._port = parts.hostname, parts.port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._headers: dict[str, Any] = {"Content-Type": "application/json"}
        if authorization is not None:
            self._headers["Authorization"] = authorization.encode()
        self._connections = threading.local()

    def drop_connections(self) -> None:
        """Closes the connections that are not in use."""
        self._connections = threading.local()

    def post(self, path: str, body: str, deadline: float, key: Optional[str] = None) -> tuple[int, Any]:
        """Returns the status and the JSON of the reply, which must arrive before `deadline` (time.monotonic()).

        Raises DivvyError if there is none.
        """
        headers = self._headers if key is None else {**self._headers, "Idempotency-Key": f'"{key}"'}
        connections = self._connections
        connection: Optional[Connection] = connections.__dict__.pop("connection", None)
        if connection is None or connection.was_closed():
            connection = self._connect()
        try:
            http_connection = connection.http
            http_connection.timeout = remaining(deadline)
            if http_connection.sock is not None:
                http_connection.sock.settimeout(http_connection.timeout)
            http_connection.request("POST", self._prefix + path, body.encode(), headers)
            http_connection.sock.settimeout(remaining(deadline))
            response = http_connection.getresponse()
            text = response.read(MAX_REPLY)
            if response.isclosed():
                # After an error or an interruption the connection is not used again, because a reply may still arrive.
                connections.connection = connection
        except (OSError, http.client.HTTPException) as error:
            raise DivvyError(f"no reply from {self._host}: {error or type(error).__name__}") from error
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, None

    def _connect(self) -> Connection:
        if self._tls is None:
            return Connection(http.client.HTTPConnection(self._host, self._port))
        return Connection(http.client.HTTPSConnection(self._host, self._port, context=self._tls))


def remaining(deadline: float) -> float:
    """Returns the seconds until the deadline. Raises TimeoutError if it is over."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


def authorization(token: Optional[str], user: Optional[str], password: Optional[str]) -> Optional[str]:
    """Returns the header for a login: a token, a password alone, or a user with a password."""
    if token is not None and (user is not None or password is not None):
        raise ValueError("give either a token, or a password, or a user with a password")
    if user is not None:
        if password is None:
            raise ValueError("a user needs a password")
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    secret = password if token is None else token
    return None if secret is None else f"Bearer {secret}"
