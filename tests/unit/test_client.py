"""The client against a real HTTP server that speaks the API's shapes."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client import ChatEnd, Client, Delta, connection
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Desired, JobLine, JobView, Plan, ServerPut, ServerState, ServerView, SwapRequest
from tests.support.polling import eventually
from tests.unit.api_stub import Answer, ApiStub, chat_answer, chunk, events, problem, running_stub, server_view

SECRET = "sk-very-secret"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
JOB = {"id": "1a", "kind": "pull", "subject": "toy", "state": "running", "created": 1.0}
PLAN = {"actions": [{"do": "start", "model": "toy", "why": "not running"}]}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLIPSTREAM_URL", "SLIPSTREAM_KEY", "SLIPSTREAM_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stub() -> Iterator[ApiStub]:
    with running_stub() as stub:
        yield stub


@pytest.fixture
def client(stub: ApiStub) -> Iterator[Client]:
    with Client(stub.url) as client:
        yield client


def failure(call: Callable[[], object]) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        call()
    return caught.value


CALLS: list[tuple[Callable[[Client], object], str, str, dict[str, str], Any, Any]] = [
    (lambda c: c.models(), "GET", "/api/models", {}, None, {"models": [], "problems": []}),
    (lambda c: c.servers(), "GET", "/api/servers", {}, None, {"servers": [server_view()]}),
    (lambda c: c.server("toy"), "GET", "/api/servers/toy", {}, None, server_view()),
    (lambda c: c.start("toy"), "POST", "/api/servers/toy/start", {}, None, server_view()),
    (lambda c: c.stop("toy"), "POST", "/api/servers/toy/stop", {}, None, server_view(state="stopped")),
    (lambda c: c.restart("toy"), "POST", "/api/servers/toy/restart", {}, None, server_view()),
    (lambda c: c.jobs(), "GET", "/api/jobs", {}, None, {"jobs": [JOB]}),
    (lambda c: c.job("1a"), "GET", "/api/jobs/1a", {}, None, JOB),
    (lambda c: c.cancel_job("1a"), "DELETE", "/api/jobs/1a", {}, None, JOB),
    (lambda c: c.flags(), "GET", "/api/flags", {}, None, [{"name": "ctx-size", "names": ["-c"], "help": "size"}]),
    (
        lambda c: c.put_server("toy", ServerPut(state=Desired.RUNNING, flags={"ctx-size": 512})),
        *("PUT", "/api/servers/toy", {"dry_run": "false"}),
        {"state": "running", "flags": {"ctx-size": 512}},
        server_view(),
    ),
    (
        lambda c: c.put_server("toy", ServerPut(flags={}), dry_run=True),
        *("PUT", "/api/servers/toy", {"dry_run": "true"}, {"flags": {}}, PLAN),
    ),
    (
        lambda c: c.swap(SwapRequest(start="toy", stop=("other",))),
        *("POST", "/api/swap", {"dry_run": "false"}, {"start": "toy", "stop": ["other"]}, server_view()),
    ),
    (
        lambda c: c.swap(SwapRequest(start="toy"), dry_run=True),
        *("POST", "/api/swap", {"dry_run": "true"}, {"start": "toy"}, PLAN),
    ),
]


@pytest.mark.parametrize(("call", "method", "path", "query", "body", "answer"), CALLS)
def test_each_call_sends_what_the_api_takes(
    stub: ApiStub,
    client: Client,
    call: Callable[[Client], object],
    method: str,
    path: str,
    query: dict[str, str],
    body: Any,
    answer: Any,
) -> None:
    stub.routes[f"{method} {path}"] = Answer(answer)
    result = call(client)
    (asked,) = stub.asked
    assert (asked.query, asked.body) == (query, body)
    assert isinstance(result, Plan) == (answer is PLAN)


def test_answers_are_typed(stub: ApiStub, client: Client) -> None:
    failure = {"reason": "exited", "message": "it ended with status 1"}
    stub.routes["GET /api/servers/toy"] = Answer(server_view(state="failed", failure=failure))
    view = client.server("toy")
    assert isinstance(view, ServerView)
    assert view.state is ServerState.FAILED
    assert view.failure is not None and view.failure.reason == "exited"


def test_a_name_cannot_become_another_path(stub: ApiStub, client: Client) -> None:
    for name in ("", ".", "..", "owner/name", "a/../../metrics?x=1"):
        error = failure(lambda name=name: client.stop(name))  # type: ignore[misc]
        assert error.code is Code.INVALID_REQUEST and repr(name) in error.message
    assert stub.asked == []
    failure(lambda: client.server("..metrics?x=1#\udcff"))
    assert stub.asked[0].path == "/api/servers/..metrics%3Fx%3D1%23%3F"


def test_text_that_no_request_can_carry(stub: ApiStub, client: Client) -> None:
    """What is no UTF-8 in arguments or on stdin reaches us as surrogates."""
    error = failure(lambda: list(client.chat("toy", [{"role": "user", "content": "\udcff"}])))
    assert error.code is Code.INVALID_REQUEST and "no UTF-8" in error.message


def test_a_problem_becomes_its_error(stub: ApiStub, client: Client) -> None:
    answer = problem("server_start_failed", "toy died", 503, hint="look", reason="exited", log_tail=["boom"])
    stub.routes["POST /api/servers/toy/start"] = Answer(answer.body, 503, answer.kind, headers={"retry-after": "10"})
    error = failure(lambda: client.start("toy"))
    assert (error.code, error.message, error.hint) == (Code.SERVER_START_FAILED, "toy died", "look")
    assert error.details == {"reason": "exited", "log_tail": ["boom"]}
    assert error.retry_after_seconds == 10


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (404, {"message": "no model", "code": "model_not_found"}, Code.MODEL_NOT_FOUND),
        (400, {"message": "context too small", "code": 400, "type": "exceed_context_size_error"}, Code.INVALID_REQUEST),
        (503, {"message": "busy", "code": None}, Code.UPSTREAM_FAILED),
    ],
)
def test_errors_of_the_data_plane(
    stub: ApiStub, client: Client, status: int, error: dict[str, Any], code: Code
) -> None:
    stub.routes[f"POST {CHAT}"] = Answer({"error": error}, status)
    raised = failure(lambda: list(client.chat("toy", MESSAGES)))
    assert (raised.code, raised.message) == (code, error["message"])


@pytest.mark.parametrize("answer", [Answer(text="<html>", status=404, kind="text/html"), Answer([1], status=500)])
def test_who_is_no_orchestrator_is_called_so(stub: ApiStub, client: Client, answer: Answer) -> None:
    stub.routes["GET /api/models"] = answer
    error = failure(client.models)
    assert error.code is Code.UPSTREAM_FAILED
    assert stub.url in error.message and str(answer.status) in error.message


def test_an_answer_of_another_version_is_called_so(stub: ApiStub, client: Client) -> None:
    stub.routes["GET /api/models"] = Answer({"models": [{"what": "is this"}]})
    error = failure(client.models)
    assert "/api/models" in error.message and error.hint is not None


def test_nobody_there_says_how_to_start() -> None:
    with running_stub() as gone:
        url = gone.url
    with Client(url) as client:
        error = failure(client.models)
    assert url in error.message
    assert error.hint is not None and "slipstream serve" in error.hint


def test_a_connection_that_breaks(stub: ApiStub, client: Client) -> None:
    stub.routes["GET /api/models"] = Answer({"models": []}, declared_bytes=1000)
    assert failure(client.models).code is Code.UPSTREAM_FAILED


def test_work_may_take_longer_than_an_answer(stub: ApiStub, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_ANSWER_TIMEOUT_SECONDS", 0.1)
    gate = threading.Event()
    stub.routes["GET /api/models"] = Answer({"models": [], "problems": []}, gate=gate)

    def after_the_short_timeout(_: object) -> Answer:
        # The start answers only when the quick call beside it has already given up.
        with Client(stub.url) as impatient:
            assert failure(impatient.models).code is Code.UPSTREAM_TIMEOUT
        return Answer(server_view())

    stub.routes["POST /api/servers/toy/start"] = after_the_short_timeout
    with Client(stub.url) as patient:
        assert patient.start("toy").state is ServerState.READY
    gate.set()


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "ftp://host", "http://", "http://h:port"])
def test_an_address_that_is_none(text: str) -> None:
    error = failure(lambda: Client(text))
    assert error.code is Code.MISCONFIGURED and repr(text) in error.message


def test_address_and_key_from_the_environment(stub: ApiStub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("\n from-file \nanother\n")
    monkeypatch.setenv("SLIPSTREAM_URL", f"{stub.url}/")
    monkeypatch.setenv("SLIPSTREAM_KEY_FILE", str(key_file))
    stub.routes["GET /readyz"] = Answer({"status": "ready"})

    def sent(key: str | None = None) -> str | None:
        with Client(key=key) as client:
            assert client.url == stub.url
            client.check_ready()
        return stub.asked[-1].headers.get("authorization")

    assert sent() == "Bearer from-file"
    monkeypatch.setenv("SLIPSTREAM_KEY", "from-env")
    assert sent() == "Bearer from-env"
    assert sent("given") == "Bearer given"
    monkeypatch.delenv("SLIPSTREAM_KEY")
    monkeypatch.delenv("SLIPSTREAM_KEY_FILE")
    assert sent() is None


def test_a_key_file_that_cannot_serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contents = {"absent": None, "empty": b" \n", "binary": b"\xff\n"}
    for name, content in contents.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        monkeypatch.setenv("SLIPSTREAM_KEY_FILE", str(path))
        error = failure(Client)
        assert error.code is Code.MISCONFIGURED and error.message.count(str(path)) == 1


def test_a_key_of_two_words_is_not_cut_in_two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("two words\n")
    monkeypatch.setenv("SLIPSTREAM_KEY_FILE", str(tmp_path / "key"))
    assert "holds a space" in failure(Client).message


def test_no_error_shows_a_secret(stub: ApiStub) -> None:
    texts = [repr(Client(stub.url, key=SECRET)), str(failure(lambda: Client(stub.url, key=f"{SECRET}\n")))]
    with Client(stub.url.replace("//", f"//user:{SECRET}@"), key=SECRET) as client:
        for call in (client.models, client.metrics, lambda: list(client.chat("toy", MESSAGES))):
            texts.append(str(failure(call)))
        texts.append(client.url)
    assert stub.asked, "the requests were sent"
    assert SECRET not in "".join(texts)


def test_a_proxy_is_not_asked_the_way_to_this_machine(stub: ApiStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    stub.routes["GET /readyz"] = Answer({"status": "ready"})
    with Client(stub.url) as client:
        client.check_ready()
    assert [asked.path for asked in stub.asked] == ["/readyz"]


def test_log_lines_come_whole(stub: ApiStub, client: Client) -> None:
    lines = ["a\u2028b", "tab\there", "", "ä"]
    text = ": ping\r\n\r\n" + events(*lines, name="line") + events("no line", name="other")
    stub.routes["GET /api/servers/toy/logs"] = Answer(text=text, kind="text/event-stream")
    assert list(client.logs("toy", tail=3, follow=False)) == lines
    assert stub.asked[0].query == {"tail": "3", "follow": "false"}


def test_events_of_a_job_are_typed_and_end(stub: ApiStub, client: Client) -> None:
    progress = {"phase": "fetching", "done_bytes": 1}
    text = events(JOB, name="job") + events({"number": 4, "at": 1.0, "text": "x"}, name="line")
    text += events(progress, name="progress") + events({}, name="of_a_newer_version") + events(JOB, name="end")
    stub.routes["GET /api/jobs/1a/events"] = Answer(text=text, kind="text/event-stream")
    got = list(client.job_events("1a", after_line=3))
    assert [event.name for event in got] == ["job", "line", "progress", "end"]
    assert got[0].data == got[3].data == JobView.model_validate(JOB)
    assert got[1].data == JobLine(number=4, at=1.0, text="x")
    assert stub.asked[0].headers["last-event-id"] == "3"


@pytest.mark.parametrize(
    ("text", "message"),
    [(events(JOB, name="job"), "broke off"), (events({"what": "is this"}, name="job"), "another shape")],
)
def test_events_of_a_job_that_are_cut_off_or_strange(stub: ApiStub, client: Client, text: str, message: str) -> None:
    stub.routes["GET /api/jobs/1a/events"] = Answer(text=text, kind="text/event-stream")
    error = failure(lambda: list(client.job_events("1a")))
    assert error.code is Code.UPSTREAM_FAILED and message in error.message


def test_an_answer_streams_and_ends_with_timings(stub: ApiStub, client: Client) -> None:
    timings = {"predicted_n": 2, "draft_n": 8}
    stub.routes[f"POST {CHAT}"] = chat_answer(
        {"choices": [{"delta": {"role": "assistant", "content": None}, "finish_reason": None}]},
        {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": None}]},
        chunk("Hel\u2028"),
        chunk("lo"),
        chunk(finish="stop"),
        {"choices": [], "usage": {}, "timings": timings},
    )
    got = list(client.chat("toy", MESSAGES, {"temperature": 0, "speculative.n_max": 0}))
    assert got == [Delta("hm", is_reasoning=True), Delta("Hel\u2028"), Delta("lo"), ChatEnd("stop", timings)]
    expected = {"temperature": 0, "speculative.n_max": 0, "model": "toy", "messages": MESSAGES, "stream": True}
    assert stub.bodies(CHAT) == [expected]


@pytest.mark.parametrize(
    ("tail", "code", "message"),
    [
        ("", Code.UPSTREAM_FAILED, "broke off"),
        (events({"error": {"message": "it died", "code": "upstream_failed"}}), Code.UPSTREAM_FAILED, "it died"),
        (events({"error": {"message": "too long", "code": 400}}), Code.INVALID_REQUEST, "too long"),
        (events("{not json"), Code.UPSTREAM_FAILED, "not JSON"),
    ],
)
def test_an_answer_that_breaks_off_is_no_whole_answer(
    stub: ApiStub, client: Client, tail: str, code: Code, message: str
) -> None:
    stub.routes[f"POST {CHAT}"] = Answer(text=events(chunk("half")) + tail, kind="text/event-stream")
    answer = client.chat("toy", MESSAGES)
    assert next(answer) == Delta("half")
    error = failure(lambda: list(answer))
    assert error.code is code and message in error.message


def test_an_answer_that_is_closed_hangs_up(stub: ApiStub, client: Client) -> None:
    stub.routes[f"POST {CHAT}"] = chat_answer(chunk("one"), chunk("two"), between=threading.Event())
    answer = client.chat("toy", MESSAGES)
    assert next(answer) == Delta("one")
    answer.close()
    eventually(stub.hung_up.is_set, "the server sees the client leave")
