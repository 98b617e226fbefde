"""Clients of a storm: each asks, stays or leaves, and holds the answer against the only right one."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from orchestrator.errors import STATUS, Code
from tests.support.storm_house import MOST_TOKENS, Speaker

Json = dict[str, Any]

HANG_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 0.3
SHARE_OF_LEAVERS = 0.2
SHARE_OF_STREAMS = 0.6
SHARE_OF_LONG_ONES = 0.15
# What a client may hear in a storm. Anything else is a fault of ours.
HONEST = {
    Code.SERVER_STOPPED,
    Code.SERVER_START_FAILED,
    Code.QUARANTINED,
    Code.WAIT_TIMEOUT,
    Code.QUEUE_FULL,
    Code.DRAINED,
    Code.UPSTREAM_FAILED,
}
WITH_RETRY_AFTER = (429, 503)


class Wrong(Exception):
    """An answer that is neither right nor an honest error."""


@dataclass
class Tally:
    """What came of the requests: how many by outcome, what was wrong, and how long those answered waited, seconds."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    waits_seconds: list[float] = field(default_factory=list)
    _goals: list[tuple[int, asyncio.Event]] = field(default_factory=list)

    def count(self, outcome: str) -> None:
        """A request has ended."""
        self.outcomes[outcome] += 1
        for requests, reached in self._goals:
            if self.asked >= requests:
                reached.set()

    async def reaches(self, requests: int) -> None:
        """Until so many requests have ended."""
        if self.asked < requests:
            self._goals.append((requests, reached := asyncio.Event()))
            await reached.wait()

    @property
    def asked(self) -> int:
        """Requests that have ended."""
        return sum(self.outcomes.values())


@dataclass
class Clients:
    """Some clients at a time, until told to stop. Each draws from a generator of its own, so that runs are alike."""

    base_url: str
    speakers: tuple[Speaker, ...]
    seed: int
    tally: Tally = field(default_factory=Tally)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, clients: int) -> None:
        """Ask until `stopping`; every request that was begun ends first."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(self.base_url, connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            for number in range(clients):
                group.create_task(self._ask_on(session, random.Random(f"{self.seed} client {number}")))

    async def _ask_on(self, session: aiohttp.ClientSession, chance: random.Random) -> None:
        while not self.stopping.is_set():
            outcome = "hung"
            speaker = chance.choice(self.speakers)
            try:
                async with asyncio.timeout(HANG_SECONDS):
                    outcome = await self._ask(session, speaker, chance)
            except TimeoutError:
                self.tally.wrong.append(f"{speaker.name}: no end within {HANG_SECONDS:g} s")
            except Wrong as e:
                outcome = "wrong"
                self.tally.wrong.append(f"{speaker.name}: {e}")
            except aiohttp.ClientError as e:
                outcome = "broken"
                self.tally.wrong.append(f"{speaker.name}: {e!r}")
            self.tally.count(outcome)
            await asyncio.sleep(chance.random() * LONGEST_PAUSE_SECONDS)

    async def _ask(self, session: aiohttp.ClientSession, speaker: Speaker, chance: random.Random) -> str:
        is_long = chance.random() < SHARE_OF_LONG_ONES
        tokens = chance.randrange(MOST_TOKENS // 2, MOST_TOKENS) if is_long else chance.randrange(1, 60)
        streams = chance.random() < SHARE_OF_STREAMS
        leaves_after = chance.random() ** 2 if chance.random() < SHARE_OF_LEAVERS else None
        asking = self._stream(session, speaker, tokens) if streams else self._plain(session, speaker, tokens)
        if leaves_after is None:
            return await asking
        task = asyncio.ensure_future(asking)
        done, _ = await asyncio.wait({task}, timeout=leaves_after)
        if done:
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        return "stream left" if streams else "plain left"

    async def _plain(self, session: aiohttp.ClientSession, speaker: Speaker, tokens: int) -> str:
        began = time.monotonic()
        async with session.post("/v1/chat/completions", json=_body(speaker, tokens, stream=False)) as response:
            if response.status != 200:
                return f"plain {await _honest(response)}"
            try:
                answer = json.loads(await response.read())
            except aiohttp.ClientPayloadError:
                # Its server died while it wrote: nobody takes what came for the whole.
                return "plain broken off"
        self.tally.waits_seconds.append(time.monotonic() - began)
        said = answer["choices"][0]["message"]["content"]
        if said != speaker.says(tokens):
            raise Wrong(f"{tokens} tokens: {said[:80]!r}, expected {speaker.says(tokens)[:80]!r}")
        return "plain answered"

    async def _stream(self, session: aiohttp.ClientSession, speaker: Speaker, tokens: int) -> str:
        began = time.monotonic()
        said, end = "", ""
        async with session.post("/v1/chat/completions", json=_body(speaker, tokens, stream=True)) as response:
            if response.status != 200:
                return f"stream {await _honest(response)}"
            async for data in _events(response):
                if end:
                    raise Wrong(f"an event after {end}: {data[:200]}")
                if data == "[DONE]":
                    end = data
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    end = _honest_code(chunk["error"])
                    continue
                if not said:
                    self.tally.waits_seconds.append(time.monotonic() - began)
                said += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        right = speaker.says(tokens)
        if not end:
            raise Wrong(f"a stream ended with neither [DONE] nor an error after {len(said)} of {len(right)} characters")
        if said != right if end == "[DONE]" else not right.startswith(said):
            raise Wrong(f"{tokens} tokens to {end}: {said[-80:]!r}, expected {right[-80:]!r}")
        return "stream answered" if end == "[DONE]" else f"stream ended by {end}"


def _body(speaker: Speaker, tokens: int, *, stream: bool) -> Json:
    messages = [{"role": "user", "content": "storm"}]
    fields = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": stream}
    return {"model": speaker.name, "messages": messages} | fields


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    try:
        async for line in response.content:
            if line.startswith(b"data: "):
                yield line[6:].decode().rstrip("\n")
    except aiohttp.ClientPayloadError as e:
        raise Wrong(f"a stream broke off without a word: {e}") from e


async def _honest(response: aiohttp.ClientResponse) -> str:
    """The code of an error that came in place of an answer."""
    text = await response.text()
    try:
        code = _honest_code(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError) as e:
        raise Wrong(f"{response.status} {text[:300]}") from e
    if response.status != STATUS[Code(code)]:
        raise Wrong(f"{code} with status {response.status}, expected {STATUS[Code(code)]}")
    if response.status in WITH_RETRY_AFTER and int(response.headers.get("retry-after", 0)) < 1:
        raise Wrong(f"{response.status} {code} without Retry-After")
    return code


def _honest_code(error: Json) -> str:
    code = error["code"]
    if code not in HONEST or not error["message"]:
        raise Wrong(f"an error that nobody promised: {error}")
    return str(code)
