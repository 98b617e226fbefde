"""Answers of models."""

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from httpx_sse import ServerSentEvent

from orchestrator.client.connection import WORK_TIMEOUT_SECONDS, Connection, from_openai, timeout
from orchestrator.errors import Code, SlipstreamError


@dataclass(frozen=True)
class Delta:
    """The next piece of an answer, or of the reasoning before it."""

    text: str
    is_reasoning: bool = False


@dataclass(frozen=True)
class ChatEnd:
    """The end of an answer.

    `finish_reason` is OpenAI's (`stop`, `length`, ...); `timings` is llama-server's object: `predicted_n` tokens,
    `predicted_per_second`, and when anything was drafted `draft_n` and `draft_n_accepted` tokens, from the patched
    server also `draft_n_steps` verification steps and `draft_n_relaxed` tokens.
    """

    finish_reason: str | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatAnswer:
    """An answer that was not streamed: its text, and what ChatEnd says of one that was."""

    text: str
    finish_reason: str | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)


class ChatCalls(Connection):
    """Calls of `/v1`."""

    def chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any] | None = None
    ) -> Generator[Delta | ChatEnd, None, None]:
        """Stream one answer: deltas as they come, ChatEnd as the last. Close the generator to end the answer early.

        `messages` and `fields` are those of OpenAI's chat completions and of llama-server; the first request loads
        the model. An answer that breaks off raises SlipstreamError after the deltas that came.
        """
        body = {**(fields or {}), "model": model, "messages": list(messages), "stream": True}
        end, is_whole = ChatEnd(), False
        for event in self._events("POST", "/v1/chat/completions", timeout(WORK_TIMEOUT_SECONDS), json=body):
            if event.data == "[DONE]":
                # Read on to the end of the response: who hangs up before it has left, for all the other side knows.
                is_whole = True
                continue
            chunk = _chunk(event)
            for choice in chunk.get("choices", ()):
                delta = choice.get("delta", {})
                if reasoning := delta.get("reasoning_content"):
                    yield Delta(reasoning, is_reasoning=True)
                if content := delta.get("content"):
                    yield Delta(content)
                end = ChatEnd(choice.get("finish_reason") or end.finish_reason, end.timings)
            # llama-server puts them into the last chunk, whichever that is.
            end = ChatEnd(end.finish_reason, chunk.get("timings", end.timings))
        if not is_whole:
            raise SlipstreamError(Code.UPSTREAM_FAILED, f"the answer of {model!r} broke off")
        yield end

    def complete(
        self, model: str, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any] | None = None
    ) -> ChatAnswer:
        """One answer, when it is whole; arguments as for `chat`."""
        body = {**(fields or {}), "model": model, "messages": list(messages), "stream": False}
        wait = timeout(WORK_TIMEOUT_SECONDS)
        answer = self._parse(self._request("POST", "/v1/chat/completions", json=body, timeout=wait), dict[str, Any])
        try:
            choice = answer["choices"][0]
            text = choice["message"].get("content") or ""
        except (LookupError, TypeError, AttributeError) as e:
            raise SlipstreamError(Code.UPSTREAM_FAILED, f"the answer of {model!r} has no message in it") from e
        return ChatAnswer(text, choice.get("finish_reason"), answer.get("timings") or {})


def _chunk(event: ServerSentEvent) -> dict[str, Any]:
    try:
        chunk = json.loads(event.data)
    except ValueError as e:
        raise SlipstreamError(Code.UPSTREAM_FAILED, f"the answer holds an event that is not JSON: {e}") from e
    if isinstance(error := chunk.get("error"), dict):
        raise from_openai(error, 500)
    return dict(chunk)
