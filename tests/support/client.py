"""A small client of llama-server's native API; answers are typed where tests read them often."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

Json = dict[str, Any]


@dataclass(frozen=True)
class Completion:
    """A finished /completion; tokens are ids, counts are of this request."""

    content: str
    tokens: tuple[int, ...]
    timings: Json
    raw: Json

    @classmethod
    def from_json(cls, answer: Json) -> Self:
        return cls(answer["content"], tuple(answer.get("tokens", ())), answer.get("timings", {}), answer)

    @property
    def draft_n(self) -> int:
        return int(self.timings.get("draft_n", 0))

    @property
    def accepted_n(self) -> int:
        return int(self.timings.get("draft_n_accepted", 0))

    @property
    def relaxed_n(self) -> int:
        return int(self.timings.get("draft_n_relaxed", 0))

    @property
    def step_n(self) -> int:
        return int(self.timings.get("draft_n_steps", 0))


@dataclass(frozen=True)
class Samples:
    """One scrape of /metrics."""

    text: str
    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def parse(cls, text: str) -> Self:
        families = text_string_to_metric_families(text)
        samples = (sample for family in families for sample in family.samples)
        return cls(text, {(s.name, frozenset(s.labels.items())): s.value for s in samples})

    def get(self, name: str, **labels: str) -> float:
        """The value of ``llamacpp:<name>`` with exactly these labels; KeyError if it is not exported."""
        return self.values[f"llamacpp:{name}", frozenset(labels.items())]

    def total(self, name: str) -> float:
        """The sum over all labels; KeyError if no such series is exported."""
        found = [value for (series, _), value in self.values.items() if series == f"llamacpp:{name}"]
        if not found:
            raise KeyError(f"no series llamacpp:{name} in the scrape")
        return sum(found)


class LlamaClient:
    """Requests to one server. Raises httpx.HTTPStatusError for an answer that is not 2xx."""

    def __init__(self, base_url: str, timeout_seconds: float = 60.0) -> None:
        self.http = httpx.Client(base_url=base_url, timeout=timeout_seconds)

    def close(self) -> None:
        self.http.close()

    def completion(self, prompt: str | list[int], n_predict: int = 32, **fields: Any) -> Completion:
        """POST /completion at temperature 0 unless told otherwise, token ids included."""
        return Completion.from_json(self.post("/completion", self._body(prompt, n_predict, fields)))

    def stream(self, prompt: str | list[int], n_predict: int, **fields: Any) -> Iterator[Json]:
        """The events of a streamed /completion, parsed; closing the iterator drops the connection."""
        body = self._body(prompt, n_predict, fields) | {"stream": True}
        with self.http.stream("POST", "/completion", json=body) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def chat(self, text: str, **fields: Any) -> Json:
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})

    def metrics(self) -> Samples:
        return Samples.parse(self.http.get("/metrics").raise_for_status().text)

    def props(self) -> Json:
        return dict(self.http.get("/props").raise_for_status().json())

    def slots(self) -> list[Json]:
        return list(self.http.get("/slots").raise_for_status().json())

    def post(self, path: str, body: Json) -> Json:
        return dict(self.http.post(path, json=body).raise_for_status().json())

    @staticmethod
    def _body(prompt: str | list[int], n_predict: int, fields: Mapping[str, Any]) -> Json:
        defaults = {"temperature": 0, "cache_prompt": False, "return_tokens": True}
        return {"prompt": prompt, "n_predict": n_predict, **defaults, **fields}
