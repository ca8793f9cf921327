import os

from divvy import DivvyMiddleware


async def hello(scope, receive, send):
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
    await send({"type": "http.response.body", "body": b"hello\n"})


def operation(scope):
    pairs = {"method": scope["method"], "path": scope["path"]}
    # A server on a Unix socket does not know the client's address.
    if scope.get("client"):
        pairs["ip"] = scope["client"][0]
    return pairs


app = DivvyMiddleware(
    hello,
    url=os.environ.get("DIVVY_URL", "http://127.0.0.1:8322"),
    operation=operation,
    token=os.environ.get("DIVVY_TOKEN"),
    timeout=float(os.environ.get("DIVVY_TIMEOUT_MS", "250")) / 1000,
)
