"""One connection to an orchestrator: address and key, requests, and what becomes of answers and errors."""

import ipaddress
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError
from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import Code, SlipstreamError

DEFAULT_URL = "http://127.0.0.1:8080"
# A start answers when the server is ready: after a load. The orchestrator watches over it itself.
WORK_TIMEOUT_SECONDS = 2 * 3600.0
# The orchestrator sends a comment every 15 s, so a longer silence is a dead connection.
FOLLOW_TIMEOUT_SECONDS = 60.0
_CONNECT_TIMEOUT_SECONDS = 5.0
_ANSWER_TIMEOUT_SECONDS = 30.0
_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "code", "detail", "hint", "instance"})
_CODES = frozenset(Code)
_CODE_OF_STATUS = {401: Code.UNAUTHORIZED, 403: Code.FORBIDDEN, 404: Code.NOT_FOUND, 413: Code.REQUEST_TOO_LARGE}
T = TypeVar("T")


class Connection:
    """What all calls share; see Client."""

    def __init__(self, url: str | None = None, *, key: str | None = None) -> None:
        base = _checked_url(url or os.environ.get("SLIPSTREAM_URL") or DEFAULT_URL)
        key = key or os.environ.get("SLIPSTREAM_KEY") or _key_from_file(os.environ.get("SLIPSTREAM_KEY_FILE"))
        self.url = str(base.copy_with(userinfo=b"")).rstrip("/")
        self._http = httpx.Client(
            base_url=base,
            headers={"authorization": f"Bearer {_checked_key(key)}"} if key else {},
            timeout=timeout(_ANSWER_TIMEOUT_SECONDS),
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

    def _get(self, path: str, shape: type[T]) -> T:
        return self._parse(self._request("GET", path), shape)

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
            return from_openai(error, response.status_code)
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
        except UnicodeEncodeError as e:
            raise SlipstreamError(Code.INVALID_REQUEST, "the request holds text that is no UTF-8") from e
        except httpx.TimeoutException as e:
            raise SlipstreamError(Code.UPSTREAM_TIMEOUT, f"{self.url} did not answer in time") from e
        except (httpx.HTTPError, SSEError) as e:
            raise SlipstreamError(Code.UPSTREAM_FAILED, f"the connection to {self.url} broke: {e}") from e


def timeout(read_seconds: float) -> httpx.Timeout:
    """Of a request that may be answered so late."""
    return httpx.Timeout(read_seconds, connect=_CONNECT_TIMEOUT_SECONDS)


def segment(name: str) -> str:
    """A name as one segment of a path; SlipstreamError when it would be none, or another path."""
    if name in ("", ".", "..") or "/" in name:
        raise SlipstreamError(
            Code.INVALID_REQUEST, f"{name!r} is not a name", hint="a name is not empty and holds no slash"
        )
    return quote(name, safe="", errors="replace")


def from_openai(error: Mapping[str, Any], status: int) -> SlipstreamError:
    """The error that an object of OpenAI's shape tells of."""
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
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as e:
        why = (e.strerror if isinstance(e, OSError) else None) or "it is no UTF-8 text"
        raise SlipstreamError(Code.MISCONFIGURED, f"SLIPSTREAM_KEY_FILE={path} is not readable: {why}") from e
    if not lines:
        raise SlipstreamError(Code.MISCONFIGURED, f"SLIPSTREAM_KEY_FILE={path} holds no key; expected one on a line")
    return lines[0]


def _checked_key(key: str) -> str:
    # The message must not show the key.
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SlipstreamError(Code.MISCONFIGURED, "the key holds a space, or a character that is not printable ASCII")
    return key
