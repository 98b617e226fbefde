"""0004: a relaxed token never leaves the grammar of its request."""

import json
import re

import pytest

from tests.integration.patches.conftest import StartPatched
from tests.integration.patches.scenario import KINDS, top_n
from tests.support import ToyBox

pytestmark = pytest.mark.integration

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("kind", ["mtp", "replay"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("grammar, matches", [('root ::= "a"+', r"a+"), ("root ::= [ -Z]+", r"[ -Z]+")])
def test_text_stays_in_the_grammar(
    patched: StartPatched, toys: ToyBox, kind: str, temperature: float, grammar: str, matches: str
) -> None:
    client = patched(toys.of(kind, draft_rank=2)).client
    fields = top_n(1000, temperature=temperature, top_k=0, min_p=0.0, top_p=1.0, seed=1, grammar=grammar)
    relaxed_n = 0
    for prompt in ("hello A", "what is b", "z"):
        answer = client.completion(prompt, 150, **fields)
        assert re.fullmatch(matches, answer.content)
        assert answer.draft_n > 0
        relaxed_n += answer.relaxed_n
    assert relaxed_n > 0 or matches == "a+"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_json_of_a_schema_validates(patched: StartPatched, toys: ToyBox, kind: str, temperature: float) -> None:
    client = patched(toys.of(kind, draft_rank=2)).client
    for seed in (1, 2, 3):
        fields = top_n(1000, temperature=temperature, seed=seed, json_schema=SCHEMA)
        answer = client.completion("Answer: ", 600, **fields)
        assert answer.raw["stop_type"] == "eos"
        said = json.loads(answer.content)
        assert set(said) == {"name", "count", "tags"}
        assert isinstance(said["name"], str) and len(said["name"]) <= 12
        assert isinstance(said["count"], int)
        assert len(said["tags"]) <= 3 and set(said["tags"]) <= {"red", "green"}
        assert answer.draft_n > 0
