"""The commands that talk to servers."""

import io
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.console import Console

from orchestrator import __version__
from orchestrator.cli import progress
from orchestrator.cli.invocation import Invocation, plain
from orchestrator.cli.main import app
from orchestrator.cli.options import parse_flags
from orchestrator.cli.progress import LiveDisplay
from orchestrator.cli.statistics import statistics_line
from orchestrator.client import Client
from orchestrator.schemas import ServerView
from tests import REPOSITORY
from tests.unit.api_stub import Answer, ApiStub, Asked, chat_answer, chunk, events, problem, server_view
from tests.unit.cli.conftest import Outcome, Run, cells

CHAT = "/v1/chat/completions"
DRAFTED = {"draft_n": 10, "draft_n_accepted": 6, "draft_n_steps": 4, "predicted_per_second": 41.27}
NOTHING = {
    **{name: 0 for name in ("predicted_tokens", "predicted_seconds", "draft_tokens", "accepted_tokens")},
    "verification_steps": 0,
}
DRAFTING = {"predicted_tokens": 50, "predicted_seconds": 2.0, "draft_tokens": 8, "accepted_tokens": 6}
SLOTS: list[dict[str, Any]] = [
    {**NOTHING, **DRAFTING, "verification_steps": 4, "slot": 0, "busy": True, "tokens_per_second": 3.5},
    {**NOTHING, "slot": 1, "busy": False},
]
SPECULATION = {
    "window_seconds": None,
    "models": [
        {**NOTHING, "model": "toy", "slots": SLOTS},
        {**NOTHING, "model": "broken", "slots": [{**SLOTS[0], "busy": None}]},
    ],
}
PLAN = {
    "actions": [
        {"do": "stop", "model": "other", "why": "makes room for toy"},
        {"do": "start", "model": "toy", "why": "not running", "argv": ["--model", "toy.gguf", "--alias", "a b"]},
    ]
}


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (None, None),
        (["ctx-size=4096"], {"ctx-size": 4096}),
        (["p=0.5", "mlock=true", "mmap=false"], {"p": 0.5, "mlock": True, "mmap": False}),
        (["n=-1", "flash-attn=on", "empty=", "kv=a=b"], {"n": -1, "flash-attn": "on", "empty": "", "kv": "a=b"}),
        # What a number would not give back as it was typed stays text.
        (["a=007", "b=1e5", "c=0.50", "d=1_000"], {"a": "007", "b": "1e5", "c": "0.50", "d": "1_000"}),
    ],
)
def test_flag_values(given: list[str] | None, flags: dict[str, Any] | None) -> None:
    parsed = parse_flags(given)
    assert parsed == flags
    assert parsed is None or flags is None or [*map(type, parsed.values())] == [*map(type, flags.values())]


@pytest.mark.parametrize(
    ("timings", "line"),
    [
        (DRAFTED, "↳ 4 rounds, 10 drafted, 6 accepted (60.0 %), 2.50 tok/round, 41.3 tok/s"),
        (
            DRAFTED | {"draft_n_relaxed": 2},
            "↳ 4 rounds, 10 drafted, 6 accepted (60.0 %), 2.50 tok/round, 41.3 tok/s, 2 relaxed",
        ),
        (
            DRAFTED | {"draft_n_relaxed": 0, "draft_n_accepted": 0},
            "↳ 4 rounds, 10 drafted, 0 accepted (0.0 %), 1.00 tok/round, 41.3 tok/s",
        ),
        # An unpatched server counts no steps.
        (
            {"draft_n": 8, "draft_n_accepted": 8, "predicted_per_second": 7},
            "↳ 8 drafted, 8 accepted (100.0 %), 7.0 tok/s",
        ),
        ({"predicted_per_second": 12.0}, "↳ no drafts, 12.0 tok/s"),
        ({"predicted_per_second": None}, "↳ no drafts"),
        ({}, "↳ no drafts"),
    ],
)
def test_the_line_of_statistics(timings: dict[str, Any], line: str) -> None:
    assert statistics_line(timings) == line


def test_control_characters_are_shown_not_obeyed() -> None:
    assert plain("a\x1b[2Jb\x07\x9b1m\x7f\ttab\r\nnext") == "a␛[2Jb␇�1m␡\ttab\nnext"


def test_version(run: Run) -> None:
    assert run("--version") == Outcome(0, f"slipstream {__version__}\n", "")


def test_status_shows_what_each_slot_did(stub: ApiStub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.cli.status.time.time", lambda: 1000.0)
    failure = {"reason": "exited", "message": "llama-server ended with status 1"}
    rests = {"failure": failure, "quarantine": {"until": 1020.25, "strikes": 2}}
    servers = [
        server_view(warnings=["slow"], running=1, waiting=2, waits_for="its 1 slot is taken"),
        server_view("broken", "failed", **rests),
    ]
    stub.routes["GET /api/servers"] = Answer({"servers": servers})
    stub.routes["GET /api/speculation"] = Answer(SPECULATION)
    outcome = run("status")
    lines = [cells(line) for line in outcome.out.splitlines()]
    assert lines[1:] == [
        ["toy", "ready", "1", "2", "draft-mtp", "0", "yes", "8", "75.0%", "2.50", "25.0"],
        ["1", "no", "-", "-", "-", "-"],
        ["broken", "failed", "0", "0", "-", "-", "-", "-", "-", "-", "-"],
    ]
    assert outcome.err.splitlines() == [
        "toy: requests wait: its 1 slot is taken",
        "toy: slow",
        "broken: llama-server ended with status 1",
        "broken: in quarantine for 20 s more, as it failed 2 times in a row; `slipstream clear broken` lifts that",
    ]
    assert outcome.status == 0


def test_status_tells_of_an_accelerator_that_is_missing(stub: ApiStub, run: Run) -> None:
    stub.routes["GET /api/servers"] = Answer({"servers": [server_view()]})
    stub.routes["GET /api/speculation"] = Answer(SPECULATION)
    stub.routes["GET /readyz"] = problem("no_accelerator", "no GPU: why", 503, hint="what to do")
    assert run("status").err == "no GPU: why (what to do)\n"


def test_status_of_one_server_as_json(stub: ApiStub, run: Run) -> None:
    stub.routes["GET /api/servers/toy"] = Answer(server_view())
    stub.routes["GET /api/speculation"] = Answer(SPECULATION)
    (server,) = run("status", "toy", "--json").json["servers"]
    drafting, idle = server["slots"]
    assert server["state"] == "ready"
    assert drafting["acceptance_ratio"] == 0.75
    assert drafting["mean_acceptance_length"] == 2.5
    assert drafting["tokens_per_second"] == 25
    assert [idle[k] for k in ("acceptance_ratio", "mean_acceptance_length", "tokens_per_second")] == [None] * 3


def test_models_shows_the_catalogue_and_what_is_wrong_with_it(stub: ApiStub, run: Run) -> None:
    sha = "0" * 64
    sources = {
        "a": {"path": "[x].gguf"},
        "b": {"hf": "owner/name", "file": "f.gguf"},
        "c": {"pypi": "p==1", "file": "f.gguf", "sha256": sha},
    }
    views = [
        {"spec": {"name": n, "source": s, "aliases": [f"{n}1"]}, "present": n == "a", "state": "stopped"}
        for n, s in sources.items()
    ]
    problems = [{"file": "bad.yaml", "message": "no name", "line": 3, "column": 1}, {"file": "x.yaml", "message": "no"}]
    stub.routes["GET /api/models"] = Answer({"models": views, "problems": problems})
    outcome = run("models")
    assert [cells(line) for line in outcome.out.splitlines()[1:]] == [
        ["a", "a1", "stopped", "yes", "none", "path", "[x].gguf"],
        ["b", "b1", "stopped", "no", "none", "hf", "owner/name/f.gguf"],
        ["c", "c1", "stopped", "no", "none", "pypi", "p==1"],
    ]
    assert outcome.err.splitlines() == ["bad.yaml:3:1: no name", "x.yaml: no"]
    assert [m["spec"]["name"] for m in run("models", "--json").json["models"]] == ["a", "b", "c"]


def test_an_empty_catalogue_is_said(stub: ApiStub, run: Run) -> None:
    stub.routes["GET /api/models"] = Answer({"models": [], "problems": []})
    outcome = run("models")
    assert (outcome.status, outcome.out) == (0, "")
    assert "no model" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "route", "query", "body"),
    [
        (["start", "toy"], "POST /api/servers/toy/start", {}, None),
        (
            ["start", "toy", "--flag", "ctx-size=512", "--flag", "mlock=true"],
            *("PUT /api/servers/toy", {"dry_run": "false"}),
            {"state": "running", "flags": {"ctx-size": 512, "mlock": True}},
        ),
        (
            ["start", "toy", "--no-flags"],
            *("PUT /api/servers/toy", {"dry_run": "false"}, {"state": "running", "flags": {}}),
        ),
        (["start", "toy", "--dry-run"], "PUT /api/servers/toy", {"dry_run": "true"}, {"state": "running"}),
        (["restart", "toy"], "POST /api/servers/toy/restart", {}, None),
        (["stop", "toy"], "POST /api/servers/toy/stop", {}, None),
        (["stop", "toy", "--drain", "0"], "POST /api/servers/toy/stop", {"drain_seconds": "0.0"}, None),
        (["restart", "toy", "--drain", "2.5"], "POST /api/servers/toy/restart", {"drain_seconds": "2.5"}, None),
        (["clear", "toy"], "POST /api/servers/toy/clear", {}, None),
        (
            ["swap", "toy", "--drain", "9"],
            *("POST /api/swap", {"dry_run": "false", "drain_seconds": "9.0"}, {"start": "toy"}),
        ),
        (["swap", "toy"], "POST /api/swap", {"dry_run": "false"}, {"start": "toy"}),
        (
            ["swap", "toy", "--stop", "a", "--stop", "b", "--flag", "x=1", "--dry-run"],
            *("POST /api/swap", {"dry_run": "true"}, {"start": "toy", "stop": ["a", "b"], "flags": {"x": 1}}),
        ),
    ],
)
def test_lifecycle_commands_ask_for_what_was_typed(
    stub: ApiStub, run: Run, arguments: list[str], route: str, query: dict[str, str], body: Any
) -> None:
    stub.routes["GET /api/servers/toy"] = Answer(server_view())
    stub.routes[route] = Answer(PLAN if "--dry-run" in arguments else server_view())
    outcome = run(*arguments)
    assert outcome.status == 0, outcome.err
    (asked,) = (a for a in stub.asked if a.method != "GET")
    assert (f"{asked.method} {asked.path}", asked.query, asked.body) == (route, query, body)
    as_json = run(*arguments, "--json")
    assert as_json.json["actions" if "--dry-run" in arguments else "model"]
    assert as_json.err == ""


def test_the_end_of_a_start_is_a_sentence(stub: ApiStub, run: Run) -> None:
    stub.routes["POST /api/servers/toy/start"] = Answer(server_view(warnings=["no drafts on slot 1"]))
    outcome = run("start", "toy")
    assert outcome.out == "toy is ready, speculation draft-mtp; its last start took 2.5 s\n"
    assert "warning: no drafts on slot 1" in outcome.err
    stub.routes["POST /api/servers/toy/stop"] = Answer(server_view(state="stopped"))
    assert run("stop", "toy").out == "toy is stopped\n"


def test_a_plan_is_shown_with_the_command(stub: ApiStub, run: Run) -> None:
    stub.routes["POST /api/swap"] = Answer(PLAN)
    lines = run("swap", "toy", "--dry-run").out.splitlines()
    assert [cells(line)[:2] for line in lines[1:3]] == [["stop", "other"], ["start", "toy"]]
    assert lines[3] == "llama-server --model toy.gguf --alias 'a b'"
    stub.routes["POST /api/swap"] = Answer({"actions": []})
    assert run("swap", "toy", "--dry-run").out == "nothing to do\n"


def test_a_start_shows_each_state_while_it_lasts(stub: ApiStub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal: a line a state. The start is answered only after every state was seen."""
    monkeypatch.setattr(progress, "_POLL_SECONDS", 0.01)
    seen = threading.Event()
    left = [server_view(state=state) for state in ("stopped", "loading", "loading", "warming", "warming")]

    def poll(_: Asked) -> Answer:
        if len(left) == 1:
            seen.set()
            return Answer(left[0])
        return Answer(left.pop(0))

    stub.routes["GET /api/servers/toy"] = poll
    stub.routes["POST /api/servers/toy/start"] = Answer(server_view(), gate=seen)
    outcome = run("start", "toy")
    assert outcome.err.splitlines()[:2] == ["toy: loading", "toy: warming"]
    assert outcome.out.startswith("toy is ready")


def test_a_terminal_gets_a_line_that_is_redrawn(stub: ApiStub) -> None:
    with Client(stub.url) as client:
        invocation = Invocation(client, is_json=False)
        terminal = io.StringIO()
        invocation.err = Console(file=terminal, force_terminal=True, width=120)
        live = LiveDisplay(invocation)
        for state in ("loading", "warming"):
            live.show(ServerView.model_validate(server_view(state=state)))
            live._progress.refresh()
            assert f"toy: {state}" in terminal.getvalue()
        live.close()


def test_a_start_that_fails_says_why(stub: ApiStub, run: Run) -> None:
    stub.routes["POST /api/servers/toy/start"] = problem(
        *("server_start_failed", "toy did not start: it ended with status 1", 503),
        hint="look at its file",
        log_tail=["loading", "error: bad magic"],
    )
    outcome = run("start", "toy", "--json")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.splitlines() == [
        "error: toy did not start: it ended with status 1",
        "  loading",
        "  error: bad magic",
        "hint: look at its file",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["start"],
        ["start", "toy", "--flag", "ctx-size"],
        ["start", "toy", "--flag", "=1"],
        ["start", "toy", "--flag", "a=1", "--flag", "a=2"],
        ["start", "toy", "--flag", "a=1", "--no-flags"],
        ["logs", "toy", "--tail", "-1"],
        ["stop", "toy", "--drain", "-1"],
        ["restart", "toy", "--drain", "3601"],
        ["events", "--after", "-1"],
        ["audit", "--limit", "0"],
        ["audit", "--limit", "1001"],
        ["clear"],
        ["chat", "toy", " "],
        ["chat", "toy"],
        ["chat", "toy", "hi", "--temperature", "hot"],
        ["serve", "--port", "70000"],
        ["serve", "--models-dir", "/does/not/exist"],
    ],
)
def test_wrong_usage_is_2_and_asks_nobody(stub: ApiStub, run: Run, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err
    assert stub.asked == []


def test_url_of_the_command_goes_first(stub: ApiStub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.routes["GET /api/models"] = Answer({"models": [], "problems": []})
    monkeypatch.setenv("SLIPSTREAM_URL", "http://127.0.0.1:9")
    assert run("models", "--json").status == 1
    assert run("models", "--json", "--url", stub.url).status == 0
    assert run("--url", stub.url, "models", "--json").status == 0
    assert run("--url", "http://127.0.0.1:9", "models", "--json", "--url", stub.url).status == 0


def test_nobody_there(stub: ApiStub, run: Run) -> None:
    outcome = run("status", "--url", "http://127.0.0.1:9")
    assert outcome.status == 1
    assert outcome.err.splitlines()[0].startswith("error: cannot connect to http://127.0.0.1:9")
    assert "slipstream serve" in outcome.err.splitlines()[1]


def test_logs(stub: ApiStub, run: Run) -> None:
    lines = ["[1] loading \x1b[31mred", "done"]
    stub.routes["GET /api/servers/toy/logs"] = Answer(text=events(*lines, name="line"), kind="text/event-stream")
    assert run("logs", "toy").out.splitlines() == ["[1] loading ␛[31mred", "done"]
    assert stub.asked[-1].query == {"tail": "100", "follow": "false"}
    outcome = run("logs", "toy", "-n", "2", "-f", "--json")
    assert [json.loads(line)["line"] for line in outcome.out.splitlines()] == lines
    assert stub.asked[-1].query == {"tail": "2", "follow": "true"}


def test_chat_prints_the_answer_and_its_statistics(stub: ApiStub, run: Run) -> None:
    stub.routes[f"POST {CHAT}"] = chat_answer(chunk("Hel"), chunk("lo"), chunk(finish="stop", timings=DRAFTED))
    options = (
        "--temperature",
        "0",
        "--max-tokens",
        "9",
        "--n-max",
        "0",
        "--relaxed-top-n",
        "5",
        "--system",
        "Be short.",
    )
    outcome = run("chat", "toy", "hi", *options)
    assert outcome == Outcome(0, f"Hello\n{statistics_line(DRAFTED)}\n", "")
    assert stub.bodies(CHAT) == [
        {
            "model": "toy",
            "stream": True,
            "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}],
            "temperature": 0.0,
            "max_tokens": 9,
            "speculative.n_max": 0,
            "speculative.relaxed_top_n": 5,
        }
    ]


def test_chat_sends_nothing_that_was_not_asked_for(stub: ApiStub, run: Run) -> None:
    stub.routes[f"POST {CHAT}"] = chat_answer(chunk("x\n", "length"))
    outcome = run("chat", "toy", stdin="from a pipe\n")
    messages = [{"role": "user", "content": "from a pipe\n"}]
    assert stub.bodies(CHAT) == [{"model": "toy", "stream": True, "messages": messages}]
    assert outcome.out == "x\n↳ no drafts\n"
    assert "limit of tokens" in outcome.err


def test_chat_as_json_is_an_object_a_line(stub: ApiStub, run: Run) -> None:
    thinking = {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": None}]}
    stub.routes[f"POST {CHAT}"] = chat_answer(thinking, chunk("a\nb"), chunk(finish="stop", timings=DRAFTED))
    assert [json.loads(line) for line in run("chat", "toy", "hi", "--json").out.splitlines()] == [
        {"type": "delta", "text": "hm", "is_reasoning": True},
        {"type": "delta", "text": "a\nb", "is_reasoning": False},
        {"type": "end", "finish_reason": "stop", "timings": DRAFTED},
    ]


def test_reasoning_is_no_part_of_the_answer(stub: ApiStub, run: Run) -> None:
    thinking = {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": None}]}
    stub.routes[f"POST {CHAT}"] = chat_answer(thinking, chunk("42", "stop"))
    assert run("chat", "toy", "hi") == Outcome(0, "42\n↳ no drafts\n", "hm\n")


def test_chat_that_breaks_off_is_an_error(stub: ApiStub, run: Run) -> None:
    stub.routes[f"POST {CHAT}"] = Answer(text=events(chunk("half")), kind="text/event-stream")
    outcome = run("chat", "toy", "hi")
    assert (outcome.status, outcome.out) == (1, "half\n")
    assert outcome.err == "error: the answer of 'toy' broke off\n"


def leaves(group: Any, *above: str) -> Iterator[tuple[str, Any]]:
    """Every command of a group and of the groups in it, by the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, *above, name)
        else:
            yield " ".join((*above, name)), command


def test_the_documentation_names_every_command_and_option() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    documented = {
        heading: set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE))
        for heading, _, section in (part.partition("\n") for part in text.split("\n## slipstream ")[1:])
    }
    root = typer.main.get_command(app)
    commands = {
        name: {option for p in command.params for option in p.opts if option.startswith("--") and option != "--help"}
        for name, command in leaves(root)
    }
    assert documented == commands
    for parameter in root.params:
        assert f"slipstream {parameter.opts[0]}" in text
