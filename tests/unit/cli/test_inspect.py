"""`slipstream inspect` and `preflight`: files here without an orchestrator, others through it."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.gguf.inspect import inspect_file
from orchestrator.schemas import Inspection
from tests.unit.api_stub import Answer, ApiStub, problem
from tests.unit.cli.conftest import Run
from tests.unit.gguf import made

INSPECT = "/api/gguf/inspect"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    keys, tensors = made.whole("step35", heads=2)
    return made.write(tmp_path / "model.gguf", ({**keys, "slipstream.graft.tool": "0.1"}, tensors))


def test_a_file_here_needs_no_orchestrator(run: Run, stub: ApiStub, model: Path) -> None:
    told = run("inspect", "model.gguf")
    assert told.status == 0 and stub.asked == []
    lines = told.lines
    assert lines["architecture"] == "step35, attention"
    assert lines["blocks"] == "2 of the trunk, 8 wide"
    assert lines["MTP head"].startswith("block 2, 3: ") and lines["MTP head"].endswith("own embeddings and output: no")
    assert lines["tokenizer"].startswith("gpt2 gpt-2, 4 tokens, bos 0, eos 1, ")
    assert lines["memory at 4096"].split(" = ")[1].startswith("weights ")
    assert lines["slipstream.graft.tool"] == "0.1"


def test_json_is_the_whole_view(run: Run, model: Path) -> None:
    told = run("inspect", "model.gguf", "--json", "--ctx", "1024")
    assert Inspection.model_validate(json.loads(told.out)) == inspect_file(model, 1024)


def test_problems_are_shown_and_control_characters_are_not_obeyed(run: Run, tmp_path: Path) -> None:
    keys, tensors = made.whole(block_count=2)
    made.write(tmp_path / "bad.gguf", (keys | {"general.name": "\x1b[31mred"}, tensors))
    told = run("inspect", "bad.gguf")
    assert told.status == 0
    assert "error blocks_disagree: block_count is 2 and nextn_predict_layers 1" in told.out
    assert "\x1b" not in told.out


@pytest.mark.parametrize("name", ["absent.gguf", "page.gguf"])
def test_what_is_no_file_or_no_gguf_is_an_error(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<html>" + bytes(50))
    told = run("inspect", name)
    assert told.status == 1 and name in told.err and told.out == ""


@pytest.mark.parametrize(
    ("argument", "source"),
    [
        ("hf:o/n:Q4/a.gguf", {"hf": "o/n", "file": "Q4/a.gguf", "revision": None}),
        ("hf:o/n@v1:a.gguf", {"hf": "o/n", "file": "a.gguf", "revision": "v1"}),
        ("https://h.example/a.gguf?x=1", {"url": "https://h.example/a.gguf?x=1"}),
    ],
)
def test_what_is_elsewhere_is_asked_of_the_orchestrator(
    run: Run, stub: ApiStub, model: Path, argument: str, source: dict[str, Any]
) -> None:
    stub.routes[f"POST {INSPECT}"] = Answer(inspect_file(model).model_dump(mode="json"))
    told = run("inspect", argument, "--ctx", "512")
    assert told.lines["architecture"] == "step35, attention"
    (body,) = stub.bodies(INSPECT)
    assert body["ctx_tokens"] == 512
    assert body["source"].items() >= {k: v for k, v in source.items() if v is not None}.items()


def test_a_repository_without_a_file_is_looked_up_first(run: Run, stub: ApiStub, model: Path) -> None:
    source = {"hf": "o/n", "file": "n-Q4_K_M.gguf", "revision": "a" * 40}
    stub.routes["POST /api/models"] = Answer({"spec": {"name": "n", "source": source}, "file": "n.yaml", "notes": []})
    stub.routes[f"POST {INSPECT}"] = Answer(inspect_file(model).model_dump(mode="json"))
    assert run("inspect", "hf:o/n:Q4_K_M").status == 0
    looked_up = stub.asked[0]
    assert looked_up.query == {"dry_run": "true"}
    assert looked_up.body["origin"] == "hf:o/n:Q4_K_M" and looked_up.body["drafter"] == "none"
    assert stub.bodies(INSPECT)[0]["source"].items() >= source.items()


def test_what_the_orchestrator_refuses_is_told(run: Run, stub: ApiStub) -> None:
    stub.routes["POST /api/models"] = problem("source_ambiguous", "o/n has 2 files that fit", 409)
    told = run("inspect", "hf:o/n")
    assert told.status == 1 and "o/n has 2 files that fit" in told.err


def test_preflight_says_what_it_found(run: Run, model: Path) -> None:
    clean = run("preflight", "model.gguf", "--spec-type", "draft-mtp")
    assert (clean.status, clean.out) == (0, "nothing found\n")
    both = run("preflight", "model.gguf", "--spec-type", "ngram-mod,draft-mtp", "--n-max", "0")
    assert both.status == 1 and both.out.startswith("error no_drafts: ")
    unknown = run("preflight", "model.gguf", "--spec-type", "mtp")
    assert unknown.status == 2 and "'mtp'" in unknown.err and "draft-mtp" in unknown.err
    clamped = run("preflight", "model.gguf", "--spec-type", "draft-mtp", "--n-max", "5")
    assert clamped.status == 0 and clamped.out.startswith("warning n_max_clamped: ")
    refused = run("preflight", "model.gguf", "--drafter", "absent.gguf", "--spec-type", "draft-simple", "--json")
    assert refused.status == 1
    assert [(p["code"], p["severity"]) for p in json.loads(refused.out)] == [("not_found", "error")]
