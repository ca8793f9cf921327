"""Spends a budget on many streams at once, with the code of docs/language-models.md.

spend_tokens.py PAGE_CODE DIVVY MODEL STREAMS RESERVE TTL KIND prints a line for each reservation that is made, and at the end, as
JSON, what each stream reserved and spent. KIND `ends`: answers of 20 to 219 tokens; `never_ends`: answers without an end.
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


async def spend(model, budget, number):
    tokens = 19 + number * 37 % 200
    wanted = {"tokens": tokens, "prompt": 1, "pause": 0.02, "never_ends": kind == "never_ends"}
    messages = [{"role": "user", "content": json.dumps(wanted)}]
    pieces = 0
    try:
        async for _ in budget_code.stream(model, budget, messages, int(reserve), int(ttl)):
            if pieces == 0:
                print("reserved", flush=True)
            pieces += 1
    except budget_code.OverBudget as denied:
        assert denied.retry_after is not None
        return {"denied": True}
    assert pieces == tokens
    return {"denied": False, "reserved": int(reserve), "spent": tokens + 1}


async def main():
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=divvy_url, limits=limits, timeout=10) as divvy:
        budget = budget_code.Budget(divvy, "acme")
        model = openai.AsyncOpenAI(base_url=f"{model_url}/v1", api_key="none", max_retries=0)
        results = await asyncio.gather(*(spend(model, budget, number) for number in range(int(streams))))
    print(json.dumps(results), flush=True)


asyncio.run(main())
