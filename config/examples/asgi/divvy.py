"""Middleware for ASGI applications (Starlette, FastAPI, Django, …) that asks divvy over HTTP. Requires httpx."""

import logging

import httpx

log = logging.getLogger("divvy")

PASSED_ON = (b"ratelimit", b"ratelimit-policy", b"retry-after")


class DivvyMiddleware:
    """Sends a hit to divvy for each HTTP request. If divvy denies it, answers 429 instead of the application.

    url: divvy's HTTP address, such as http://127.0.0.1:8322
    operation: a function of the ASGI scope that returns the pairs that divvy's rules see
    cost: a function of the ASGI scope that returns how many credits a request takes; without it, the rule decides
    token: divvy's password (--requirepass), if it has one
    fail_open: when divvy does not answer, let requests through instead of answering 503
    timeout: how long to wait for divvy, in seconds
    """

    def __init__(self, app, *, url, operation, cost=None, token=None, fail_open=False, timeout=0.25):
        self.app = app
        self.operation = operation
        self.cost = cost
        self.fail_open = fail_open
        # One client for all requests, so connections are reused.
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.AsyncClient(base_url=url, timeout=timeout, headers=headers)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        hit = {"operation": self.operation(scope)}
        if self.cost:
            hit["cost"] = self.cost(scope)
        try:
            answer = await self.client.post("/v1/hit", json=hit)
            if answer.status_code >= 500:
                raise httpx.HTTPError(f"it answered with {answer.status_code}: {answer.text}")
        except httpx.HTTPError as error:
            log.error("divvy does not answer: %s", error)
            if self.fail_open:
                return await self.app(scope, receive, send)
            return await respond(send, 503, [])
        if answer.status_code not in (200, 429):
            # The application asks in a wrong way: the rules, the password or its own operation must be corrected. This is no outage.
            log.error("divvy refuses the question with %s: %s", answer.status_code, detail(answer))
            if self.fail_open:
                return await self.app(scope, receive, send)
            return await respond(send, 500, [])
        headers = [(name, answer.headers[name.decode()].encode()) for name in PASSED_ON if name.decode() in answer.headers]
        if answer.status_code == 429:
            return await respond(send, 429, headers)

        async def send_with_headers(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *headers]}
            await send(message)

        await self.app(scope, receive, send_with_headers)


def detail(answer):
    """Problems are JSON objects (RFC 9457) that say in `detail` what is wrong."""
    try:
        return answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return answer.text


async def respond(send, status, headers):
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"0")]})
    await send({"type": "http.response.body"})
