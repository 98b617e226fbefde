"""The commands that bring, prove and remove files."""

import json
from typing import Any

import pytest

from tests.unit.api_stub import Answer, ApiStub, problem
from tests.unit.cli.conftest import Run, cells

SHA, OTHER = "a" * 64, "b" * 64
SPEC = {"name": "toy", "source": {"hf": "o/n", "file": "toy.gguf"}}


def job(result: dict[str, Any] | None = None, state: str = "succeeded", **fields: Any) -> dict[str, Any]:
    view = {"id": "1a", "kind": "pull", "subject": "toy", "state": state, "created": 1.0, "runs": 1, "result": result}
    return view | fields


def answers(stub: ApiStub, route: str, ended: dict[str, Any]) -> None:
    """A request that becomes a job, which then ends like this."""
    stub.routes[route] = Answer(job(state="queued"), 202)
    begun, end = (
        f"event: {name}\ndata: {json.dumps(view)}\n\n" for name, view in (("job", job(state="running")), ("end", ended))
    )
    stub.routes["GET /api/jobs/1a/events"] = Answer(text=begun + end, kind="text/event-stream")


def test_add_says_what_was_decided(stub: ApiStub, run: Run) -> None:
    stub.routes["POST /api/models"] = Answer({"spec": SPEC, "file": "toy.yaml", "notes": ["a note"]}, 201)
    shown = run("add", "hf:o/n:Q4_K_M", "--name", "toy", "--drafter", "none")
    assert shown.out.splitlines() == [
        "wrote toy.yaml: model toy",
        "  a note",
        "bring its files with: slipstream pull toy",
    ]
    assert stub.bodies("/api/models") == [{"origin": "hf:o/n:Q4_K_M", "name": "toy", "drafter": "none"}]
    assert run("add", "hf:o/n", "--dry-run").out.startswith("would write toy.yaml")
    assert stub.asked[-1].query == {"dry_run": "true"}


def test_add_between_two_is_the_orchestrators_question(stub: ApiStub, run: Run) -> None:
    stub.routes["POST /api/models"] = problem("source_ambiguous", "o/n has 2 files", 409, hint="name one")
    shown = run("add", "hf:o/n")
    assert shown.status == 1 and "o/n has 2 files" in shown.err and "name one" in shown.err


def test_pull_lists_what_is_there(stub: ApiStub, run: Run) -> None:
    files = [
        {"name": "toy.gguf", "size_bytes": 98_362_432, "sha256": SHA},
        {"name": "toy-MTP.gguf", "size_bytes": 104_000_000, "sha256": None},
    ]
    answers(stub, "POST /api/models/toy/pull", job({"files": files, "warnings": ["mind the gap"]}))
    shown = run("pull", "toy", "--update")
    assert [cells(line) for line in shown.out.splitlines()[1:]] == [
        ["toy.gguf", "98.4", "MB", SHA],
        ["toy-MTP.gguf", "104.0", "MB", "not", "hashed"],
    ]
    assert "warning: mind the gap" in shown.err
    assert stub.asked[0].query == {"update": "true"}
    assert run("pull", "toy", "--json").json["result"]["files"] == files


def test_a_pull_that_fails_says_why(stub: ApiStub, run: Run) -> None:
    error = {"code": "source_gated", "message": "o/n is gated", "hint": "set HF_TOKEN", "details": {}}
    answers(stub, "POST /api/models/toy/pull", job(state="failed", error=error))
    shown = run("pull", "toy")
    assert (shown.status, shown.out) == (1, "")
    assert "o/n is gated" in shown.err and "set HF_TOKEN" in shown.err


@pytest.mark.parametrize("given", [(), ("toy", "other")])
def test_verify_of_right_files(stub: ApiStub, run: Run, given: tuple[str, ...]) -> None:
    ok = {"sha256": SHA, "size_bytes": 3_000_000_000, "names": ["hf/o/n/c/a.gguf"]}
    loose = {"sha256": None, "size_bytes": 1, "names": ["grafts/1/a-MTP.gguf"]}
    found = {"ok": [ok], "wrong": [], "unrecorded": [loose], "read_bytes": 3_000_000_000, "seconds": 2.0}
    answers(stub, "POST /api/store/verify", job(found))
    shown = run("verify", *given)
    assert shown.status == 0
    assert shown.out.splitlines()[-1] == "1 right, 0 wrong; 3.0 GB read, 1.5 GB/s"
    assert "grafts/1/a-MTP.gguf" in shown.out
    assert stub.bodies("/api/store/verify") == [{"models": list(given)} if given else {}]


def test_verify_of_wrong_files_is_a_failure(stub: ApiStub, run: Run) -> None:
    wrong = {"expected_sha256": SHA, "actual_sha256": OTHER, "size_bytes": 1, "names": ["a"], "quarantined": "q"}
    found = {"ok": [], "wrong": [wrong], "missing": ["b"], "read_bytes": 0, "seconds": 0}
    found["unreadable"] = [{"names": ["c"], "reason": "Input/output error"}]
    answers(stub, "POST /api/store/verify", job(found))
    shown = run("verify")
    assert shown.status == 1
    assert SHA in shown.err and OTHER in shown.err and "quarantine as q" in shown.err
    assert "b is not there" in shown.err and "c could not be read: Input/output error" in shown.err
    assert run("verify", "--json").json["wrong"] == [wrong]


def test_gc_says_what_it_did(stub: ApiStub, run: Run) -> None:
    removed = [
        {"sha256": SHA, "size_bytes": 5_892_704, "names": ["hf/o/n/c/a.gguf", "url/1/b.gguf"]},
        {"sha256": OTHER, "size_bytes": 12, "names": []},
    ]
    stub.routes["POST /api/store/gc"] = Answer({"dry_run": True, "removed": removed, "freed_bytes": 5_892_716})
    shown = run("gc", "--dry-run")
    assert cells(shown.out.splitlines()[1]) == ["5.9", "MB", "hf/o/n/c/a.gguf,", "url/1/b.gguf"]
    assert f"content {OTHER}" in shown.out
    assert shown.out.splitlines()[-1] == "2 files; would free 5.9 MB"
    stub.routes["POST /api/store/gc"] = Answer({"dry_run": False, "removed": [], "freed_bytes": 0})
    assert run("gc").out == "0 files; freed 0 B\n"
    assert [asked.query for asked in stub.asked] == [{"dry_run": "true"}, {"dry_run": "false"}]


def test_ollama_lists_models_and_its_runner(stub: ApiStub, run: Run) -> None:
    runner = {"version": "0.3.0-dev", "build": 1, "commit": "d222767c7"}
    stub.routes["GET /api/ollama"] = Answer({"models": ["a:latest", "b:2b"], "runner": runner})
    shown = run("ollama")
    assert shown.out == "a:latest\nb:2b\n" and "d222767c7" in shown.err
    stub.routes["GET /api/ollama"] = Answer({"models": [], "runner": None})
    assert "OLLAMA_LIB_DIR" in run("ollama").err
