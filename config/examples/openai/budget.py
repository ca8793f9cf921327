"""Streams answers of a language model, within a budget of tokens in divvy.

Needs Python 3.10 or newer, and the packages of `pip install openai httpx`. The rules need no special setting:

    [service=chat tenant=*]
    creditLimit = 10000
    per = 1h
    actorField = tenant
    label = tokens

    [default]
    creditLimit = 0

If divvy does not answer the reservation, `stream` raises httpx's error and does not ask the model. For other failures, see
docs/recipes.md#tokens-of-a-language-model. If an answer may take longer than `ttl`, renew the reservation while you stream:
`POST /v1/reservations/{id}/renew`. This code needs no change if a rule with `algorithm = concurrency` limits the answers at a time.
"""

import asyncio
from contextlib import aclosing, asynccontextmanager

import httpx
import openai


class OverBudget(Exception):
    """Too few tokens are left for the request."""

    def __init__(self, retry_after: int | None):
        wait = "" if retry_after is None else f"; ask again in {retry_after} seconds"
        super().__init__(f"over budget{wait}")
        self.retry_after = retry_after


class Budget:
    """The tokens of one tenant."""

    def __init__(self, divvy: httpx.AsyncClient, tenant: str):
        self.divvy = divvy
        self.operation = {"service": "chat", "tenant": tenant}

    @asynccontextmanager
    async def reserve(self, tokens: int, ttl: int = 60):
        """Reserves tokens for the block. At its end, the used tokens are counted, and the others are freed, even after an error."""
        request = {"operation": self.operation, "amount": tokens, "ttl": ttl}
        answer = await self.divvy.post("/v1/reservations", json=request)
        if answer.status_code == 429:
            raise OverBudget(answer.json().get("retryAfter"))
        answer.raise_for_status()
        reservation = Reservation(self.divvy, answer.json()["id"])
        try:
            yield reservation
        finally:
            await asyncio.shield(reservation.commit())


class Reservation:
    """Reserved tokens, and the number of them that were used so far."""

    def __init__(self, divvy: httpx.AsyncClient, id: str):
        self.divvy = divvy
        self.path = f"/v1/reservations/{id}"
        self.used = 0

    async def commit(self, patience: float = 30):
        """Repeats the commit until divvy answers it. Repeated commits count once, so a lost answer or a restart does no harm."""
        give_up = asyncio.get_running_loop().time() + patience
        while True:
            try:
                answer = await self.divvy.post(f"{self.path}/commit", json={"cost": self.used})
                if answer.status_code < 500:
                    answer.raise_for_status()
                    return answer.json()
            except httpx.TransportError:
                pass
            if asyncio.get_running_loop().time() > give_up:
                raise TimeoutError("divvy did not answer the commit")
            await asyncio.sleep(0.1)


def prompt_tokens(messages: list) -> int:
    """Estimates a token for four bytes, and four for each message. The model's tokenizer counts exactly."""
    return sum(4 + len(str(message.get("content") or "").encode()) // 4 for message in messages)


async def stream(model: openai.AsyncOpenAI, budget: Budget, messages: list, most: int, ttl: int = 60):
    """Yields the pieces of an answer. Prompt and answer together may use `most` tokens."""
    prompt = prompt_tokens(messages)
    if most <= prompt:
        raise ValueError(f"the prompt has about {prompt} tokens, which leaves none of {most} for an answer")
    async with budget.reserve(most, ttl) as reservation:
        answer = await model.chat.completions.create(
            model="any",
            messages=messages,
            # The model ends the answer there. Some models call this max_completion_tokens.
            max_tokens=most - prompt,
            stream=True,
            # The last piece reports the usage.
            stream_options={"include_usage": True},
        )
        # Until the usage arrives, or if the stream ends early: the prompt, and one token for each piece.
        reservation.used = prompt
        # Leaving the block closes the connection, so the model stops.
        async with answer:
            async for piece in answer:
                # Some pieces have no text.
                texts = [choice.delta.content for choice in piece.choices if choice.delta.content]
                if piece.usage:
                    reservation.used = piece.usage.total_tokens
                else:
                    reservation.used += len(texts)
                for text in texts:
                    yield text


async def ask(model: openai.AsyncOpenAI, budget: Budget, messages: list, most: int, is_enough) -> str:
    """Reads an answer until it is enough. A loop that may stop early needs `aclosing`, so that the commit happens at once."""
    answer = ""
    async with aclosing(stream(model, budget, messages, most)) as pieces:
        async for piece in pieces:
            answer += piece
            if is_enough(answer):
                break
    return answer
