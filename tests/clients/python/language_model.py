"""A language model that streams like OpenAI's API: language_model.py PORT. The last message determines the length of the answer."""

import asyncio
import json
import sys

import uvicorn


async def app(scope, receive, send):
    assert scope["type"] == "http"
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    request = json.loads(body)
    assert request["stream"] and request["stream_options"]["include_usage"]
    wanted = json.loads(request["messages"][-1]["content"])
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send_event(send, piece(choices=[choice({"role": "assistant", "content": None})]))
    for _ in range(wanted["tokens"]):
        await send_event(send, piece(choices=[choice({"content": "word "})]))
        await asyncio.sleep(wanted["pause"])
    while wanted.get("never_ends"):
        await asyncio.sleep(1)
    await send_event(send, piece(choices=[choice({}, "stop")]))
    total = wanted["tokens"] + wanted["prompt"]
    usage = {"prompt_tokens": wanted["prompt"], "completion_tokens": wanted["tokens"], "total_tokens": total}
    await send_event(send, piece(choices=[], usage=usage))
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def piece(**rest):
    return {"id": "answer", "object": "chat.completion.chunk", "created": 0, "model": "any", **rest}


def choice(delta, finish_reason=None):
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


async def send_event(send, event):
    data = f"data: {json.dumps(event)}\n\n".encode()
    await send({"type": "http.response.body", "body": data, "more_body": True})


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
