"""Spends a budget on many streams at once, with the code of config/examples/openai/budget.py.

spend_tokens.py CODE DIVVY MODEL STREAMS RESERVE TTL KIND prints a line for each reservation that is made, and at the end, as
JSON, what each stream reserved and spent. KIND `ends`: answers of 20 to 219 tokens; `never_ends`: answers without an end;
`stopped`: answers without an end, which are stopped after three tokens.
"""

import asyncio
import importlib.util
import json
import sys

import httpx
import openai

code, divvy_url, model_url, streams, reserve, ttl, kind = sys.argv[1:]
spec = importlib.util.spec_from_file_location("budget", code)
budget_code = importlib.util.module_from_spec(spec)
spec.loader.exec_module(budget_code)


def prompt(tokens, **rest):
    wanted = {"tokens": tokens, "prompt": 1, "pause": 0.02, **rest}
    return [{"role": "user", "content": json.dumps(wanted)}]


async def spend(model, budget, number):
    tokens = 19 + number * 37 % 200
    messages = prompt(tokens, never_ends=kind == "never_ends")
    pieces = 0
    try:
        async for piece in budget_code.stream(model, budget, messages, int(reserve), int(ttl)):
            assert piece == "word ", piece
            if pieces == 0:
                print("reserved", flush=True)
            pieces += 1
    except budget_code.OverBudget as denied:
        assert denied.retry_after is not None
        return {"denied": True}
    assert pieces == tokens
    return {"denied": False, "reserved": int(reserve), "spent": tokens + 1}


async def stop(model, budget, _):
    """Stops an answer. Asserts that the model may use only the rest of the reservation, and that the connection is closed before
    the commit."""
    messages = prompt(3, never_ends=True)
    estimate = budget_code.prompt_tokens(messages)
    assert estimate > 10, estimate
    events = []

    def recorded(event, call):
        async def record(*arguments):
            events.append(event)
            return await call(*arguments)

        return record

    create = model.chat.completions.create

    async def create_recorded(**request):
        assert request["max_tokens"] == int(reserve) - estimate, request
        answer = await create(**request)
        answer.close = recorded("closed", answer.close)
        return answer

    model.chat.completions.create = create_recorded
    budget_code.Reservation.commit = recorded("committed", budget_code.Reservation.commit)
    answer = await budget_code.ask(model, budget, messages, int(reserve), lambda text: text.count("word") == 3)
    assert (answer, events) == ("word word word ", ["closed", "committed"]), (answer, events)
    return {"denied": False, "reserved": int(reserve), "spent": estimate + 3}


async def main():
    run = stop if kind == "stopped" else spend
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=divvy_url, limits=limits, timeout=10) as divvy:
        budget = budget_code.Budget(divvy, "acme")
        model = openai.AsyncOpenAI(base_url=f"{model_url}/v1", api_key="none", max_retries=0)
        results = await asyncio.gather(*(run(model, budget, number) for number in range(int(streams))))
    print(json.dumps(results), flush=True)


asyncio.run(main())
