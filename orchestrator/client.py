"""The typed HTTP client of the API, for the command line and for other programs.

```
with Client() as client:
    client.start("smollm2-135m")
    for part in client.chat("smollm2-135m", [{"role": "user", "content": "Hello"}]):
        print(part)
```
"""

import ipaddress
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError
from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FlagInfo, ModelList, ModelView, Plan, ServerList, ServerPut, ServerView, SwapRequest

DEFAULT_URL = "http://127.0.0.1:8080"
_CONNECT_TIMEOUT_SECONDS = 5.0
_ANSWER_TIMEOUT_SECONDS = 30.0
# A start answers when the server is ready: after a fetch and a load. The orchestrator watches over both itself.
_WORK_TIMEOUT_SECONDS = 2 * 3600.0
# The orchestrator sends a comment every 15 s, so a longer silence is a dead connection.
_FOLLOW_TIMEOUT_SECONDS = 60.0
_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "code", "detail", "hint", "instance"})
_CODES = frozenset(Code)
_CODE_OF_STATUS = {401: Code.UNAUTHORIZED, 403: Code.FORBIDDEN, 404: Code.NOT_FOUND, 413: Code.REQUEST_TOO_LARGE}
T = TypeVar("T")


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


class Client:
    """Calls of one orchestrator. Every method raises SlipstreamError with code, message and hint.

    `url` defaults to SLIPSTREAM_URL, then http://127.0.0.1:8080. `key` defaults to SLIPSTREAM_KEY, then to the first
    line of the file that SLIPSTREAM_KEY_FILE names; without one no key is sent. May be used from several threads.
    """

    def __init__(self, url: str | None = None, *, key: str | None = None) -> None:
        base = _checked_url(url or os.environ.get("SLIPSTREAM_URL") or DEFAULT_URL)
        key = key or os.environ.get("SLIPSTREAM_KEY") or _key_from_file(os.environ.get("SLIPSTREAM_KEY_FILE"))
        self.url = str(base.copy_with(userinfo=b"")).rstrip("/")
        self._http = httpx.Client(
            base_url=base,
            headers={"authorization": f"Bearer {_checked_key(key)}"} if key else {},
            timeout=_timeout(_ANSWER_TIMEOUT_SECONDS),
            # A proxy of the environment leads to other machines, never back to this one.
            trust_env=not _is_loopback(base.host),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def check_ready(self) -> None:
        """Return when the orchestrator takes requests now; SlipstreamError otherwise."""
        self._request("GET", "/readyz")

    def models(self) -> ModelList:
        """The catalogue, and the model files that could not be loaded."""
        return self._get("/api/models", ModelList)

    def model(self, name: str) -> ModelView:
        """One model, by name or alias."""
        return self._get(f"/api/models/{_segment(name)}", ModelView)

    def servers(self) -> ServerList:
        """Every server, one a model."""
        return self._get("/api/servers", ServerList)

    def server(self, model: str) -> ServerView:
        """One server, by the name or alias of its model."""
        return self._get(f"/api/servers/{_segment(model)}", ServerView)

    def put_server(self, model: str, body: ServerPut, *, dry_run: bool = False) -> ServerView | Plan:
        """Set desired state and flags; answers when it is done. `dry_run` answers with a Plan and touches nothing."""
        return self._change("PUT", f"/api/servers/{_segment(model)}", body, dry_run)

    def start(self, model: str) -> ServerView:
        """Start the server and keep it running; answers when it is ready, minutes later for a large model."""
        return self._command(model, "start")

    def stop(self, model: str) -> ServerView:
        """End the server; answers when its process is gone."""
        return self._command(model, "stop")

    def restart(self, model: str) -> ServerView:
        """End the server and start it again; answers when it is ready."""
        return self._command(model, "restart")

    def swap(self, body: SwapRequest, *, dry_run: bool = False) -> ServerView | Plan:
        """Stop servers and start another; if it fails, what ran before runs again and the error says so."""
        return self._change("POST", "/api/swap", body, dry_run)

    def flags(self) -> list[FlagInfo]:
        """Every flag of the llama-server binary."""
        return self._get("/api/flags", list[FlagInfo])

    def metrics(self) -> str:
        """The page for Prometheus, in its text format."""
        return self._request("GET", "/metrics").text

    def logs(self, model: str, *, tail: int = 100, follow: bool = True) -> Generator[str, None, None]:
        """Log lines of a server: the last `tail`, then new ones as they come. Close the generator to end it."""
        timeout = _timeout(_FOLLOW_TIMEOUT_SECONDS)
        params = {"tail": tail, "follow": follow}
        for event in self._events("GET", f"/api/servers/{_segment(model)}/logs", timeout, params=params):
            if event.event == "line":
                yield event.data

    def chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any] | None = None
    ) -> Generator[Delta | ChatEnd, None, None]:
        """Stream one answer: deltas as they come, ChatEnd as the last. Close the generator to end the answer early.

        `messages` and `fields` are those of OpenAI's chat completions and of llama-server; the first request loads
        the model. An answer that breaks off raises SlipstreamError after the deltas that came.
        """
        body = {**(fields or {}), "model": model, "messages": list(messages), "stream": True}
        end = ChatEnd()
        for event in self._events("POST", "/v1/chat/completions", _timeout(_WORK_TIMEOUT_SECONDS), json=body):
            if event.data == "[DONE]":
                yield end
                return
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
        raise SlipstreamError(Code.UPSTREAM_FAILED, f"the answer of {model!r} broke off")

    def _get(self, path: str, shape: type[T]) -> T:
        return self._parse(self._request("GET", path), shape)

    def _command(self, model: str, verb: str) -> ServerView:
        path = f"/api/servers/{_segment(model)}/{verb}"
        return self._parse(self._request("POST", path, timeout=_timeout(_WORK_TIMEOUT_SECONDS)), ServerView)

    def _change(self, method: str, path: str, body: ServerPut | SwapRequest, dry_run: bool) -> ServerView | Plan:
        response = self._request(
            method,
            path,
            params={"dry_run": dry_run},
            json=body.model_dump(mode="json", exclude_none=True),
            timeout=_timeout(_WORK_TIMEOUT_SECONDS),
        )
        return self._parse(response, Plan) if dry_run else self._parse(response, ServerView)

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self._connection_errors():
            response = self._http.request(method, path, **options)
        if not response.is_success:
            raise self._error(response)
        return response

    def _events(self, method: str, path: str, timeout: httpx.Timeout, **options: Any) -> Iterator[ServerSentEvent]:
        with (
            self._connection_errors(),
            self._http.stream(method, path, timeout=timeout, **options) as response,
        ):
            if not response.is_success:
                response.read()
                raise self._error(response)
            yield from EventSource(response).iter_sse()

    def _parse(self, response: httpx.Response, shape: type[T]) -> T:
        try:
            return TypeAdapter(shape).validate_json(response.content)
        except ValidationError as e:
            raise SlipstreamError(
                Code.UPSTREAM_FAILED,
                f"{response.request.url.path} of {self.url} answered with another shape than this version knows",
                hint="use the `slipstream` command of the orchestrator's own version",
            ) from e

    def _error(self, response: httpx.Response) -> SlipstreamError:
        """The error of a response: RFC 9457 under /api, OpenAI's shape under /v1."""
        try:
            body = response.json()
            error = body.get("error")
        except (ValueError, AttributeError):
            return self._stranger(response)
        if isinstance(error, dict) and "message" in error:
            return _from_openai(error, response.status_code)
        if "detail" not in body or "code" not in body:
            return self._stranger(response)
        return SlipstreamError(
            _code(body["code"], response.status_code),
            str(body["detail"]),
            hint=body.get("hint"),
            retry_after_seconds=_whole_seconds(response.headers.get("retry-after")),
            details={k: v for k, v in body.items() if k not in _PROBLEM_MEMBERS},
        )

    def _stranger(self, response: httpx.Response) -> SlipstreamError:
        return SlipstreamError(
            Code.UPSTREAM_FAILED,
            f"{self.url} answered {response.request.method} {response.request.url.path} with "
            f"{response.status_code} and no error of Slipstream's",
            hint="make sure that this is the address of an orchestrator",
        )

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as e:
            raise SlipstreamError(
                Code.UPSTREAM_FAILED,
                f"cannot connect to {self.url}: {e}",
                hint="start an orchestrator with `slipstream serve`, or name its address with --url or SLIPSTREAM_URL",
            ) from e
        except httpx.TimeoutException as e:
            raise SlipstreamError(Code.UPSTREAM_TIMEOUT, f"{self.url} did not answer in time") from e
        except (httpx.HTTPError, SSEError) as e:
            raise SlipstreamError(Code.UPSTREAM_FAILED, f"the connection to {self.url} broke: {e}") from e


def _timeout(read_seconds: float) -> httpx.Timeout:
    return httpx.Timeout(read_seconds, connect=_CONNECT_TIMEOUT_SECONDS)


def _segment(name: str) -> str:
    return quote(name, safe="")


def _chunk(event: ServerSentEvent) -> dict[str, Any]:
    try:
        chunk = json.loads(event.data)
    except ValueError as e:
        raise SlipstreamError(Code.UPSTREAM_FAILED, f"the answer holds an event that is not JSON: {e}") from e
    if isinstance(error := chunk.get("error"), dict):
        raise _from_openai(error, 500)
    return dict(chunk)


def _from_openai(error: Mapping[str, Any], status: int) -> SlipstreamError:
    return SlipstreamError(_code(error.get("code"), status), str(error.get("message")))


def _code(code: object, status: int) -> Code:
    """The code itself where we know it; llama-server's own errors carry a number."""
    if isinstance(code, str) and code in _CODES:
        return Code(code)
    status = code if isinstance(code, int) else status
    return _CODE_OF_STATUS.get(status, Code.INVALID_REQUEST if status < 500 else Code.UPSTREAM_FAILED)


def _whole_seconds(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _checked_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as e:
        raise SlipstreamError(Code.MISCONFIGURED, f"{text!r} is not an address ({e}); expected {DEFAULT_URL}") from e
    if url.scheme not in ("http", "https") or not url.host:
        raise SlipstreamError(Code.MISCONFIGURED, f"{text!r} is not an address; expected one such as {DEFAULT_URL}")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _key_from_file(path: str | None) -> str | None:
    if not path:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as e:
        raise SlipstreamError(Code.MISCONFIGURED, f"SLIPSTREAM_KEY_FILE={path} is not readable: {e}") from e
    if not lines:
        raise SlipstreamError(Code.MISCONFIGURED, f"SLIPSTREAM_KEY_FILE={path} holds no key; expected one on a line")
    return lines[0]


def _checked_key(key: str) -> str:
    # The message must not show the key.
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SlipstreamError(Code.MISCONFIGURED, "the key holds a character that no HTTP header can carry")
    return key
