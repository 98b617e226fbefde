import re

import pytest

from orchestrator.gateway import DATA_PATHS, is_data
from orchestrator.gateway.dialects import Dialect
from orchestrator.gateway.routes import ROUTES, Work, dialect_of, listed_model
from tests import REPOSITORY

ROW = re.compile(r"^\| (`/.+?) \| (`\S+`|its own) \| (\w+) \|", re.M)


def test_the_document_lists_every_route() -> None:
    found = {}
    for paths, upstream, work in ROW.findall((REPOSITORY / "docs" / "gateway.md").read_text()):
        for path in re.findall(r"`(\S+?)`", paths):
            found[path] = (upstream.strip("`"), work)
    assert found == {path: (route.upstream, str(route.work)) for path, route in ROUTES.items()}


@pytest.mark.parametrize(
    "path",
    [
        *("/slots", "/slots/0", "/props", "/v1/props", "/lora-adapters", "/metrics", "/health", "/v1/health"),
        *("/v1/stream", "/v1/streams/lookup", "/v1/chat/completions/control", "/tools", "/v1/slots", "/api/models"),
    ],
)
def test_nothing_else_is_passed_on(path: str) -> None:
    assert path not in ROUTES


def test_data_plane() -> None:
    assert set(ROUTES) < DATA_PATHS and all(map(is_data, DATA_PATHS))
    assert is_data("/v1/nowhere") and is_data("/models/a") and is_data("/v1/models/a")
    assert not any(map(is_data, ("/", "/v1", "/api/models", "/metrics", "/slots", "/modelsx", "/completions/x")))


def test_generation_is_what_defaults_are_for() -> None:
    generating = {path for path, route in ROUTES.items() if route.work is Work.GENERATE}
    assert {"/v1/messages", "/infill", "/completion", "/v1/audio/transcriptions"} < generating
    assert generating.isdisjoint({"/tokenize", "/v1/embeddings", "/rerank", "/v1/messages/count_tokens"})


def test_native_and_openai_forms_are_told_apart() -> None:
    assert ROUTES["/completions"].upstream == "/completion" and ROUTES["/v1/completions"].upstream == "/v1/completions"
    assert ROUTES["/embeddings"].upstream == "/embedding" and ROUTES["/v1/embeddings"].upstream == "/v1/embeddings"


@pytest.mark.parametrize(
    "path, name",
    [
        ("/v1/models", ""),
        ("/models", ""),
        ("/v1/models/a", "a"),
        ("/models/a", "a"),
        ("/v1/modelsx", None),
        ("/x", None),
    ],
)
def test_listed_model(path: str, name: str | None) -> None:
    assert listed_model(path) == name


def test_dialects() -> None:
    assert all(dialect_of(path) is route.dialect for path, route in ROUTES.items())
    assert dialect_of("/v1/messages/nowhere") is Dialect.ANTHROPIC
