"""Runs divvy, so that pictures show its own answers."""

import json
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

DENIED = 429


def simulate(binary, rules, steps):
    """Runs steps of a test case. Returns what they got in place of what they expect: {(step, field): value}. The steps
    count from 1."""
    with tempfile.TemporaryDirectory() as directory:
        file, cases = Path(directory, "rules.ini"), Path(directory, "rules.test.json")
        file.write_text(rules, encoding="utf-8")
        cases.write_text(json.dumps({"version": 1, "cases": [{"name": "picture", "steps": steps}]}), encoding="utf-8")
        done = subprocess.run([binary, "test", file, "--json"], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"divvy test: {done.stderr}")
    (result,) = json.loads(done.stdout)["results"]
    return {
        (failure["step"], difference["field"]): difference["got"]
        for failure in result["failures"]
        for difference in failure["differences"]
    }


@contextmanager
def serve(binary, rules, *flags):
    """Serves a rules file. Yields the addresses of RESP and HTTP."""
    listeners = [f"--{front}=127.0.0.1:0" for front in ("listen", "resp-listen", "http-listen", "grpc-listen")]
    server = subprocess.Popen(
        [binary, "serve", rules, *listeners, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield [
            next(line.split()[-1] for line in server.stdout if line.startswith(f"{front} on "))
            for front in ("RESP", "HTTP")
        ]
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def ask(address, path, body=None):
    """Posts JSON, or gets the path if there is none. Returns the reply, which may be a denial."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://{address}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as reply:
        if reply.code != DENIED:
            raise
        return json.load(reply)


def free_port():
    """Returns a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
