"""What of llama-server can be reached, and how it is spelt: an allow-list.

llama-server has other routes, which show prompts, change its settings or read files (tools/server/server.cpp, main).
"""

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.gateway.dialects import Dialect

MODELS = "/v1/models"
MODEL_LISTS = (MODELS, "/models")


class Work(StrEnum):
    """What a route has the server do. `generate` gets the model's request defaults; `count` needs no slot."""

    GENERATE = "generate"
    EMBED = "embed"
    COUNT = "count"


@dataclass(frozen=True)
class Route:
    """One path that takes POST. `takes_id_slot`: the server reads `id_slot` from the body of this route."""

    upstream: str
    work: Work
    dialect: Dialect = Dialect.OPENAI
    is_form: bool = False
    takes_id_slot: bool = False

    @property
    def operation(self) -> str:
        """What it does in the words of OpenTelemetry's conventions for generative AI, as far as they have one."""
        return _OPERATIONS.get(self.upstream) or self.upstream.rpartition("/")[2]


_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/completion": "text_completion",
    "/infill": "text_completion",
    "/embedding": "embeddings",
}


def _spelt(route: Route, *paths: str) -> dict[str, Route]:
    return dict.fromkeys(paths or (route.upstream, f"/v1{route.upstream}"), route)


def _openai(path: str, work: Work, *, is_form: bool = False, takes_id_slot: bool = False) -> dict[str, Route]:
    route = Route(f"/v1{path}", work, is_form=is_form, takes_id_slot=takes_id_slot)
    return _spelt(route, route.upstream, path)


# `/completions` and `/embeddings` at the root are llama.cpp's own form, under /v1 they are OpenAI's.
ROUTES: dict[str, Route] = {
    **_openai("/chat/completions", Work.GENERATE, takes_id_slot=True),
    **_openai("/chat/completions/input_tokens", Work.COUNT),
    **_spelt(Route("/v1/completions", Work.GENERATE, takes_id_slot=True), "/v1/completions"),
    **_spelt(Route("/completion", Work.GENERATE, takes_id_slot=True), "/completion", "/completions"),
    **_openai("/responses", Work.GENERATE, takes_id_slot=True),
    **_openai("/responses/input_tokens", Work.COUNT),
    **_spelt(Route("/v1/embeddings", Work.EMBED), "/v1/embeddings"),
    **_spelt(Route("/embedding", Work.EMBED), "/embedding", "/embeddings"),
    **_openai("/rerank", Work.EMBED),
    **_openai("/reranking", Work.EMBED),
    **_openai("/audio/transcriptions", Work.GENERATE, is_form=True),
    **_spelt(Route("/v1/messages", Work.GENERATE, Dialect.ANTHROPIC), "/v1/messages"),
    **_spelt(Route("/v1/messages/count_tokens", Work.COUNT, Dialect.ANTHROPIC), "/v1/messages/count_tokens"),
    **_spelt(Route("/tokenize", Work.COUNT)),
    **_spelt(Route("/detokenize", Work.COUNT)),
    **_spelt(Route("/apply-template", Work.COUNT)),
    **_spelt(Route("/infill", Work.GENERATE, takes_id_slot=True)),
}

DATA_PATHS: frozenset[str] = frozenset({*ROUTES, *MODEL_LISTS})


def is_data(path: str) -> bool:
    """Whether a path belongs to the data plane: everything under `/v1`, and the spellings at the root."""
    return path in DATA_PATHS or path.startswith(("/v1/", "/models/"))


def is_listed(path: str) -> bool:
    """Whether a path is one of the few that have a meaning, so that it may stand in logs and names of spans."""
    return path in DATA_PATHS


def listed_model(path: str) -> str | None:
    """The name in a path of the list of models, empty for the list itself; None for every other path."""
    for base in MODEL_LISTS:
        if path == base or path.startswith(f"{base}/"):
            return path[len(base) :].lstrip("/")
    return None


def dialect_of(path: str) -> Dialect:
    """How to tell an error at a path, whether there is such a route or not."""
    return Dialect.ANTHROPIC if path.startswith("/v1/messages") else Dialect.OPENAI
